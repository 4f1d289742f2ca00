"""Predictions of a tuned model for texts and for files of any size; and the model with its task's input format."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import compress, islice
from pathlib import Path
from typing import IO, Any

from foretell.data.lines import ZIP, content_suffix
from foretell.data.memory import list_texts
from foretell.data.table import FORMATS, LINES, TEXT, Lines, Row, Table, csv_line, open_table, text_line
from foretell.errors import DataError, UsageError
from foretell.finetuning.examples import Example, ExampleReader, warn_of_other_columns
from foretell.finetuning.head import encode_examples, head_of, head_outputs, input_format
from foretell.finetuning.kind import Kind
from foretell.finetuning.prediction_format import TaskPrediction
from foretell.finetuning.settings import Columns
from foretell.language_model import LanguageModel
from foretell.storage.files import check_target, new_files
from foretell.typesetting.html import ShownList

ROWS_AT_ONCE = 1024

logger = logging.getLogger(__name__)

Predicted = tuple[Row, TaskPrediction | None]
Done = Callable[[int], None]  # called with the number of finished rows
Line = Callable[[Sequence[Any]], str]  # makes a line of a row's cells


def predict(model: LanguageModel, texts: str | Sequence[str | Sequence[str]]) -> ShownList[TaskPrediction]:
    """The predictions of a tuned model for one or several texts.

    For tasks with several texts per example, each item is a sequence: a pair of texts, a question and its answers, or
    the words to tag.
    Raises the errors of `predict_rows`, and UsageError for a value that is not a string.
    """
    rows = [tuple(row) if is_row(row) else (row,) for row in list_texts(texts)]
    for index, row in enumerate(rows):
        if other := [text for text in row if not isinstance(text, str)]:  # a missing cell in pandas is the number NaN
            raise UsageError(f"texts[{index}] has {other[0]!r:.80}, which is not a string")
    return ShownList(predict_rows(model, rows))


def is_row(texts: object) -> bool:
    """True if an item holds several texts; the items of a dict are names."""
    return isinstance(texts, Iterable) and not isinstance(texts, str | Mapping)


def given_texts(reader: ExampleReader, texts: Sequence[str]) -> tuple[str, ...]:
    """The texts of one example. Raises UsageError for the wrong number of texts and for an empty one."""
    given = reader.given_texts(texts)
    if not all(text.strip() for text in given):
        raise UsageError("the text is empty; give at least one character")
    return given


def predict_rows(
    model: LanguageModel, rows: Sequence[Sequence[str]], where: Sequence[str] = ()
) -> list[TaskPrediction]:
    """A prediction for each row: a text, a pair, a question and its answers, or the words to tag.

    Raises UsageError for an empty text, a wrong number of texts and a model without a head, and DataError for a text
    that does not fit the context, unless the model was trained to cut such texts.
    """
    head = head_of(model)
    kind = head.task
    sources = where or [f"text {index}" for index in range(1, len(rows) + 1)]
    examples = [
        Example(given_texts(kind.reader, texts), (), source) for texts, source in zip(rows, sources, strict=True)
    ]
    encoded = encode_examples(examples, kind, input_format(model))
    rows_of_outputs = head_outputs(model.decoder, head, encoded, model.dtype)
    return [
        replace(kind.predictions.make(outputs, example.texts), cut=inputs.cut)
        for outputs, example, inputs in zip(rows_of_outputs, examples, encoded, strict=True)
    ]


def iter_predictions(model: LanguageModel, rows: Iterable[tuple[Row, tuple[str, ...]]]) -> Iterator[Predicted]:
    """Rows with their predictions, ROWS_AT_ONCE at a time; None for a row with an empty text."""
    pending = iter(rows)
    while group := list(islice(pending, ROWS_AT_ONCE)):
        is_full = [bool(texts) and all(text.strip() for text in texts) for _, texts in group]
        full = list(compress(group, is_full))
        results = iter(predict_rows(model, [texts for _, texts in full], [row.where for row, _ in full]))
        yield from (
            (row, next(results) if has_text else None) for (row, _), has_text in zip(group, is_full, strict=True)
        )


def predict_file(model: LanguageModel, table: Table, given: Columns) -> Iterator[Predicted]:
    """The rows of a file with their predictions, in order; None for a row with an empty text.

    By default, the columns are the ones that the model was trained on. The number of rows without a text is logged.
    """
    kind = head_of(model).task
    columns = prediction_columns(table, kind, given)
    rows, empty, first = iter(table), 0, ""
    if isinstance(table.format, Lines):  # keep blank lines, so that predictions correspond to lines
        rows = (replace(row, cells=row.cells or {TEXT: ""}) for row in table.records())
    for row, prediction in iter_predictions(model, ((row, kind.reader.texts(row, columns)) for row in rows)):
        if prediction is None:
            empty, first = empty + 1, first or row.where
        yield row, prediction
    if empty:
        logger.warning(f"rows without a text, which have no prediction: {empty:,}; the first is {first}")


def find_table(path: Path, kind: Kind, encoding: str | None = None, names: tuple[str, ...] = ()) -> Table | None:
    """The table in a file (.txt: a text per line); None for other suffixes."""
    suffix, own = content_suffix(path), kind.reader.otherwise
    if suffix not in (*FORMATS, ".txt", ZIP, *own.suffixes):
        return None
    return open_table(path, encoding, names, own if suffix in own.suffixes else LINES)


def prediction_columns(table: Table, kind: Kind, given: Columns) -> Columns:
    """The text columns of a file: as given, as in training, or found by an unambiguous name."""
    available = table.first_columns()
    trained = kind.settings.columns
    if not given.texts and not given.choices and all(name in available for name in trained.texts):
        return trained.model_copy(update={"label": None})
    if not given.texts and available == [TEXT] and len(trained.texts) == 1:
        return Columns(texts=(TEXT,))
    chosen = kind.reader.find_texts(available, given, str(table))
    warn_of_other_columns(str(table), chosen, trained.model_copy(update={"label": None}), given)
    return chosen


def check_predictions_file(path: Path, *, overwrite: bool = False) -> Path:
    """The file to be written, links followed. Refuses one that cannot be written, before any work."""
    if path.suffix.lower() not in WRITERS:
        raise UsageError(f"--out {path}: give a name that ends in {', '.join(WRITERS)}")
    return check_target(path, overwrite=overwrite)


def write_predictions(
    path: Path, predicted: Iterable[Predicted], kind: Kind, done: Done, table: Table, *, overwrite: bool = False
) -> int:
    """Write rows with their predictions, atomically. Returns the number of rows.

    A .csv or .tsv file has the separator, quotes, encoding and line end of the table.
    """
    target = check_predictions_file(path, overwrite=overwrite)
    writer = WRITERS[path.suffix.lower()]
    kept = table.separator if table.file.suffix == ".csv" else ","
    separator = "\t" if path.suffix.lower() == ".tsv" else kept
    encoding, end = table.form if writer is write_table else ("utf-8", "\n")
    line: Line = partial(csv_line, delimiter=separator, end=end)
    if separator == table.separator == "\t" and table.has_text_quotes:
        line = partial(text_line, end=end)
    with new_files(target) as (temporary,), temporary.open("w", encoding=encoding, newline="") as file:
        count = 0
        for count, cells in enumerate(writer(file, line, predicted, kind), start=1):  # noqa: B007
            done(count)
    return count


def write_table(file: IO[str], line: Line, predicted: Iterable[Predicted], kind: Kind) -> Iterator[dict[str, Any]]:
    """The cells of each row and of its prediction, the same columns for every row."""
    header: list[str] = []
    for row, prediction in predicted:
        cells = joined_cells(row, kind.predictions.table_cells(prediction))
        cells = {name: json.dumps(cell) if isinstance(cell, list) else cell for name, cell in cells.items()}
        if not header:
            header = list(cells)
            file.write(line(header))
        if more := cells.keys() - set(header):
            raise DataError(f"{row.where}: the column {min(more)!r} is not in the first row; write .jsonl")
        file.write(line([cells.get(name) for name in header]))
        yield cells


def write_lines(file: IO[str], line: Line, predicted: Iterable[Predicted], kind: Kind) -> Iterator[dict[str, Any]]:
    """The cells of each row, followed by the cells of its prediction."""
    for row, prediction in predicted:
        cells = joined_cells(row, kind.predictions.cells(prediction))
        file.write(json.dumps(cells, ensure_ascii=False, default=str) + "\n")
        yield cells


WRITERS = {".csv": write_table, ".tsv": write_table, ".jsonl": write_lines}


def joined_cells(row: Row, cells: dict[str, Any]) -> dict[str, Any]:
    """The cells of a row and its prediction; refuses a row with a column of the prediction's name."""
    name = next((name for name in cells if name in row.cells), None)
    if name is not None:
        raise DataError(f"{row.where}: the file has a column {name!r} already; rename it")
    return {**row.cells, **cells}


@dataclass(frozen=True, repr=False)
class TaskInputModel(LanguageModel):
    """A tuned model whose `encode` puts its task's special tokens around a text and the `others` of the example.

    A similarity uses the given order of the texts, and a choice uses answer number `shown`, from 0.
    """

    others: tuple[str, ...] = ()
    shown: int = 0

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The token sequence for the head; a UsageError for a wrong number of texts."""
        kind = head_of(self).task
        (encoded,) = kind.encode([kind.reader.given_texts([text, *self.others])], input_format(self))
        if encoded.cut:
            raise UsageError(f"the text does not fit the context by {encoded.cut} tokens; give a shorter one")
        return encoded.sequences[self.shown]


def as_task_input(model: LanguageModel, others: Sequence[str] = (), shown: int = 0) -> TaskInputModel:
    """The model for texts of its task; a UsageError for a model without a head, or for a missing answer."""
    if shown >= max(1, head_of(model).task.predictions.num_answers(others)):
        raise UsageError(f"there is no answer {shown}, counted from 0")
    own = {field.name: getattr(model, field.name) for field in fields(LanguageModel)}
    return TaskInputModel(**own, others=tuple(others), shown=shown)

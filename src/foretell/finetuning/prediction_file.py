"""Predictions for the rows of a file, written next to the columns of the rows: CSV, TSV or JSON Lines."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from foretell.data.table import FORMATS, TEXT, Delimited, Row, Table
from foretell.errors import DataError, OutputError, UsageError
from foretell.files import new_files
from foretell.finetuning.columns import find_choices, only_texts
from foretell.finetuning.examples import iter_texts
from foretell.finetuning.head import head_of
from foretell.finetuning.predict import TaskPrediction, iter_predictions
from foretell.finetuning.settings import Columns, HeadSettings
from foretell.language_model import LanguageModel

LABEL, VALUE, PROBABILITY = "predicted_label", "predicted_value", "probability_"
PROBABILITIES = "probabilities"

logger = logging.getLogger(__name__)

Predicted = tuple[Row, TaskPrediction | None]
Done = Callable[[int], None]  # takes the number of rows so far


def predict_file(model: LanguageModel, table: Table, given: Columns) -> Iterator[Predicted]:
    """The rows of a file with their predictions, in order; None for a row with an empty text.

    Columns that are not given are those that the model was trained on. The number of rows without a text is logged.
    """
    settings = head_of(model).settings
    columns = prediction_columns(table, settings, given)
    empty, first = 0, ""
    for row, prediction in iter_predictions(model, iter_texts(table, columns, settings.task)):
        if prediction is None:
            empty, first = empty + 1, first or row.where
        yield row, prediction
    if empty:
        logger.warning(f"{empty:,} rows have an empty text and so no prediction; the first is {first}")


def prediction_columns(table: Table, settings: HeadSettings, given: Columns) -> Columns:
    """The columns with the texts of a file: given, as in training, or the one whose name leaves no doubt."""
    available = table.first_columns()
    trained = settings.columns
    if not given.texts and not given.choices and all(name in available for name in trained.texts):
        return trained.model_copy(update={"label": None})
    if not given.texts and available == [TEXT] and len(trained.texts) == 1:
        return Columns(texts=(TEXT,))
    texts = only_texts(available, settings.task, given.texts, str(table))
    others = [name for name in available if name not in texts]
    choices = find_choices(others, given.choices, str(table)) if settings.task == "choice" else ()
    return Columns(texts=texts, choices=choices)


def write_predictions(path: Path, predicted: Iterable[Predicted], settings: HeadSettings, done: Done) -> int:
    """Write rows with their predictions; the file appears whole when all are done. Returns the number of rows."""
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise UsageError(f"--out {path}: give a name that ends in {', '.join(WRITERS)}")
    if path.exists():
        raise OutputError(f"could not write {path}: it exists; give another name")
    if not path.parent.is_dir():
        raise OutputError(f"could not write {path}: there is no folder {path.parent}")
    with new_files(path) as (temporary,), temporary.open("w", encoding="utf-8", newline="") as file:
        count = 0
        for count, cells in enumerate(writer(file, path, predicted, settings), start=1):  # noqa: B007
            done(count)
    return count


def write_table(
    file: IO[str], path: Path, predicted: Iterable[Predicted], settings: HeadSettings
) -> Iterator[dict[str, Any]]:
    """A column for the label and one for each probability, or one for the number, after those of the rows."""
    table = None
    for row, prediction in predicted:
        own = {name: json.dumps(cell) if isinstance(cell, list) else cell for name, cell in row.cells.items()}
        cells = {**own, **flat_cells(row, prediction, settings)}
        if table is None:
            written_as = FORMATS[path.suffix.lower()]
            assert isinstance(written_as, Delimited)
            table = csv.DictWriter(file, list(cells), delimiter=written_as.delimiter, lineterminator="\n")
            table.writeheader()
        try:
            table.writerow(cells)
        except ValueError as error:
            raise DataError(f"{row.where}: other columns than the rows before it ({error}); write .jsonl") from None
        yield cells


def write_lines(
    file: IO[str], path: Path, predicted: Iterable[Predicted], settings: HeadSettings
) -> Iterator[dict[str, Any]]:
    """The row's own fields, then the label with all probabilities, or the number."""
    for row, prediction in predicted:
        own = {PROBABILITIES: prediction.probabilities} if prediction and prediction.probabilities else {}
        cells = {**row.cells, **first_cells(row, prediction, settings), **own}
        file.write(json.dumps(cells, ensure_ascii=False, default=str) + "\n")
        yield cells


WRITERS = {".csv": write_table, ".tsv": write_table, ".jsonl": write_lines}


def first_cells(row: Row, prediction: TaskPrediction | None, settings: HeadSettings) -> dict[str, Any]:
    """The label or number under its column; refuses a row that has such a column."""
    name = VALUE if settings.is_number else LABEL
    if name in row.cells:
        raise DataError(f"{row.where}: the file has a column {name!r} already; rename it")
    if prediction is None:
        return {name: None}
    return {name: prediction.value if settings.is_number else prediction.label}


def flat_cells(row: Row, prediction: TaskPrediction | None, settings: HeadSettings) -> dict[str, Any]:
    """The cells of a table: the label and the probability of each label; of a choice, that of each answer."""
    cells = first_cells(row, prediction, settings)
    if settings.is_number:
        return cells
    values = list((prediction.probabilities or {}).values()) if prediction else []
    names = settings.labels or tuple(map(str, range(len(values))))
    shown = [f"{value:.6g}" for value in values] or [""] * len(names)
    return cells | {f"{PROBABILITY}{name}": value for name, value in zip(names, shown, strict=True)}

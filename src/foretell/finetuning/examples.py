"""Examples, and the reader that makes them from the rows of a file, whose columns it finds."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from foretell.data.numbers import is_number, plain_number
from foretell.data.questions import CHAT_FIELDS
from foretell.data.table import LINES, Format, Row, Table, list_names, without_index
from foretell.errors import DataError, UsageError, did_you_mean
from foretell.finetuning.settings import Columns

UNNAMED = Columns(texts=())
TEXT_NAMES = (
    *("text", "sentence", "content", "review", "tweet", "document", "body", "message", "comment", "headline", "title"),
)
LABEL_NAMES = (
    *("label", "labels", "class", "category", "target", "gold_label", "gold", "sentiment", "score", "rating"),
    *("similarity", "stars", "answer", "y"),
)
FIRST_EMPTY = 3  # rows with empty cells that a message names
SAMPLED = 1000  # rows from which columns are guessed
NOT_LABELS = frozenset(("id", "split", "fold", "source", "lang", "language", "date", "time", "author", "user", "url"))
TWO_WORDS = re.compile(r"[^\W\d_]{2,}\s+[^\W\d_]{2,}")

logger = logging.getLogger(__name__)


class EmptyCellError(DataError):
    """The text, label or group of a row is empty."""


@dataclass(frozen=True)
class Example:
    """The texts of a row and its labels as written in the file; `where` is its file and line.

    group: examples of a group are held out together or not at all.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    where: str
    group: str | None = None


@dataclass(frozen=True)
class ExampleForm:
    """The texts of an example: their number, in words, and as arguments of `foretell predict`.

    columns: the number of columns of texts, without columns of choices.
    """

    fewest: int = 1
    most: int | None = 1
    columns: int = 1
    words: str = "one text"
    arguments: str = '"a text"'


class ExampleReader:
    """Reads the texts and labels of a task's examples.

    task: the name of the kind. label_names: common names of the column of labels; the first is preferred.
    """

    form: ClassVar[ExampleForm] = ExampleForm()
    text_names: ClassVar[tuple[str, ...]] = TEXT_NAMES
    text_word: ClassVar[str] = "text"
    otherwise: ClassVar[Format] = LINES  # the format of files whose suffix is not in FORMATS

    def __init__(self, task: str, label_names: tuple[str, ...] = LABEL_NAMES):
        self.task, self.label_names = task, label_names

    # --- columns

    def find_columns(self, available: Sequence[str], given: Columns, where: str, guessed: Columns = UNNAMED) -> Columns:
        """Choose the columns of texts and labels in a file; `given` are the columns that the user named.

        guessed: columns by their cells, for a file in which no column has a common name.
        Raises DataError for a missing column and, with the list of columns, if the names are ambiguous.
        """
        check_columns(available, given.names, where)
        label = given.label or self._find_label(available, given, where, guessed)
        if label in given.texts:
            raise DataError(
                f"{where}: {label!r} is named as text and as label; its columns are {list_names(available, 12)}"
            )
        others = [name for name in available if name != label and name not in given.choices]
        texts = tuple(name for name in guessed.texts if name in others)
        if not given.texts and len(texts) == self.form.columns and not with_name(others, self.text_names):
            given = given.model_copy(update={"texts": texts})
        return self.find_texts(others, given, where).model_copy(update={"label": label, "decimal": given.decimal})

    def _find_label(self, available: Sequence[str], given: Columns, where: str, guessed: Columns) -> str:
        """The column with a common name, or else the only one that is left, or the guessed one."""
        texts = given.texts or with_name(available, self.text_names) or guessed.texts
        rest = [name for name in without_index(available) if name not in (*texts, *given.choices)]
        is_only = len(rest) == 1 and len(texts) == self.form.columns and is_for_labels(rest[0])
        first = self.label_names[:1]
        names = first if with_name(available, first) else self.label_names
        return only_column(available, names, "label", "--label-column", where, rest[0] if is_only else guessed.label)

    def find_texts(self, available: Sequence[str], given: Columns, where: str) -> Columns:
        """Choose the columns of texts, without the label."""
        check_columns(available, given.texts, where)
        texts, count = given.texts or self.guess_texts(available, where), self.form.columns
        if len(texts) != count:
            needed = f"{count} text column{'s' * (count > 1)}"
            raise DataError(f"{where}: --task {self.task} reads {needed}, not {len(texts)}")
        return Columns(texts=texts)

    def guess_texts(self, available: Sequence[str], where: str) -> tuple[str, ...]:
        """Find the columns of texts by common names."""
        if len(named := without_index(available)) == 1:
            return (named[0],)
        return (only_column(available, self.text_names, self.text_word, "--text-column", where),)

    # --- examples

    def given_texts(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The texts of an example that a user gives; a UsageError for the wrong number."""
        if len(texts) < self.form.fewest or (self.form.most is not None and len(texts) > self.form.most):
            raise UsageError(f"a model for --task {self.task} reads {self.form.words}, not {len(texts)}")
        return tuple(texts)

    def texts(self, row: Row, columns: Columns) -> tuple[str, ...]:
        """The texts of a row, which may be empty; a DataError for a missing column or a cell that is not a text."""
        return tuple(cell_text(row, name) for name in columns.texts)

    def text_name(self, index: int, columns: Columns) -> str:
        return columns.texts[index]

    def labels(self, row: Row, texts: tuple[str, ...], columns: Columns) -> tuple[str, ...]:
        assert columns.label is not None
        label = label_text(row.cells.get(columns.label), columns.label, row.where)
        return (label if columns.decimal is None else plain_number(label, columns.decimal) or label,)

    def read(self, row: Row, columns: Columns) -> Example:
        """A row as an example. Raises EmptyCellError for an empty text or label."""
        texts = self.texts(row, columns)
        empty = next((index for index, text in enumerate(texts) if not text.strip()), None)
        if empty is not None:
            name = self.text_name(empty, columns)
            raise EmptyCellError(f"{row.where}: the text in column {name!r} is empty; fill it or remove the row")
        return Example(texts, self.labels(row, texts, columns), row.where)

    def read_all(self, table: Table, columns: Columns, group: str | None = None) -> list[Example]:
        """All rows of a file as examples; `group` is the column of their groups.

        Raises DataError for a row that is not an example, and for a file without rows.
        """
        examples, empty = [], list[EmptyCellError]()
        for row in table:
            try:
                name = None if group is None else label_text(row.cells.get(group), group, row.where, "group")
                examples.append(replace(self.read(row, columns), group=name))
            except EmptyCellError as error:
                empty.append(error)
        if len(empty) > 1:
            first = "; ".join(str(error).partition(";")[0] for error in empty[:FIRST_EMPTY])
            raise DataError(f"{len(empty):,} rows have empty cells: {first}{' ...' * (len(empty) > FIRST_EMPTY)}")
        if empty:
            raise empty[0]
        if not examples:
            raise DataError(f"{table}: it has no rows; give a file with a row per example")
        warn_of_row_as_header(table, columns.label, {label for example in examples for label in example.labels})
        return examples


def check_columns(available: Sequence[str], names: Sequence[str], where: str) -> None:
    """Refuse a missing column."""
    for name in names:
        if name not in available:
            near = did_you_mean(name, available)
            raise DataError(f"{where}: no column {name!r}{near}; its columns are {list_names(available, 12)}")


def with_name(available: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns with one of these names, ignoring case."""
    return [name for name in available if name.lower() in names]


def columns_by_cells(rows: Iterable[Row], without: str | None = None) -> Columns:
    """The only column with texts of several words, and the only other one with repeated values, which must be few.

    A column is left open if several would do. Values of a label occur ten times on average; a column with one value
    for all rows, with another value in nearly every row, or with a name in NOT_LABELS, is not a label. without: the
    column of groups.
    """
    cells: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row.cells.items():
            cells.setdefault(name, []).append("" if value is None else str(value))
    cells.pop(without or "", None)
    texts = [name for name, values in cells.items() if 2 * sum(map(bool, map(TWO_WORDS.search, values))) > len(values)]
    distinct = {name: len({*values} - {""}) / len(values) for name, values in cells.items() if name not in texts}
    repeated = [name for name, share in distinct.items() if share < 0.9 and len({*cells[name]} - {""}) > 1]
    label = repeated[0] if len(repeated) == 1 and distinct[repeated[0]] <= 0.1 and is_for_labels(repeated[0]) else None
    return Columns(texts=tuple(texts) if len(texts) == 1 else (), label=label)


def is_for_labels(name: str) -> bool:
    return name.lower() not in NOT_LABELS


def only_column(
    available: Sequence[str], names: Sequence[str], what: str, option: str, where: str, guessed: str | None = None
) -> str:
    """The only column with one of these names; `guessed` if there is none."""
    matching = with_name(available, names) or [guessed] * (guessed in available)
    if len(matching) == 1 and matching[0] is not None:
        return matching[0]
    advice = "; if it has no header line: --columns text,label" if Path(where).suffix in (".csv", ".tsv") else ""
    if not {name.lower() for name in available}.isdisjoint(CHAT_FIELDS):
        advice = "; for conversations: --task chat"
    raise DataError(
        f"{where}: which column holds the {what}? Name it with {option}; its columns are {list_names(available, 12)}"
        f"{advice}"
    )


def warn_of_other_columns(where: str, chosen: Columns, trained: Columns, given: Columns = UNNAMED) -> None:
    """Name columns that were chosen because the columns of the training are missing."""
    if others := [name for name in chosen.names if name not in (*trained.names, *given.names)]:
        missing = [name for name in trained.names if name not in chosen.names]
        logger.warning(
            f"columns     {where}: reads {list_names(others)} instead of the training's {list_names(missing)}"
        )


def warn_of_row_as_header(table: Table, label: str | None, labels: set[str]) -> None:
    """Warn if the column of labels is called like a label, because the header may be a row."""
    words = [] if label is None or not table.has_header_line else [label.strip(), *label.split()]
    is_label = any(labels.issuperset(part) for part in (words[:1], words[1:]))
    if words and (is_label or all(map(is_number, [words[0], *labels]))):
        table.note_once(
            f"the first line is read as the names of the columns, but {label!r} may be a label; for a file without a "
            "header, name the columns: --columns text,label",
            str(table),
        )


def cell_text(row: Row, column: str) -> str:
    value = row.cells.get(column)
    if isinstance(value, str):
        return value
    what = "missing" if column not in row.cells else f"{'null' if value is None else repr(str(value)[:40])}, not a text"
    raise DataError(f"{row.where}: column {column!r} is {what}; its columns are {list_names(list(row.cells))}")


def label_text(value: Any, column: str, where: str, word: str = "label") -> str:
    """A label or a group as text; JSON numbers, true and false as they are written there."""
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, list):
        raise DataError(f"{where}: {column!r} holds several {word}s; train a model for each, on a column of yes and no")
    if value is None or not isinstance(value, str | int | float) or not str(value).strip():
        what = "empty" if value is None or value == "" else f"{str(value)[:40]!r}"
        error = EmptyCellError if what == "empty" else DataError
        raise error(f"{where}: the {word} in column {column!r} is {what}; give a word or a number")
    return str(value).strip()

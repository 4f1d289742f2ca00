"""Examples of a task, from the rows of a file: texts, and a label or number as it is written there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foretell.data.table import Row, Table, list_names
from foretell.errors import DataError
from foretell.finetuning.columns import CHOICES
from foretell.finetuning.settings import Columns, TaskName

LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Example:
    """The texts of a row (one, two, or a question and its answers) and its label; `where` is its file and line."""

    texts: tuple[str, ...]
    label: str
    where: str


def read_examples(table: Table, columns: Columns, task: TaskName) -> list[Example]:
    """All rows of a file as examples. Raises DataError for an empty text or label, and for a file without rows."""
    examples = [read_example(row, columns, task) for row in table]
    if not examples:
        raise DataError(f"{table}: it has no rows; give a file with a row per example")
    return examples


def read_example(row: Row, columns: Columns, task: TaskName) -> Example:
    """One row. The label of a choice is the index of the right answer, from 0."""
    texts = read_texts(row, columns, task)
    empty = next((index for index, text in enumerate(texts) if not text.strip()), None)
    if empty is not None:
        names = (*columns.texts, *(columns.choices or (f"{CHOICES}, item {n}" for n in range(1, len(texts)))))
        raise DataError(f"{row.where}: the text in column {names[empty]!r} is empty; fill it or remove the row")
    assert columns.label is not None
    label = label_text(row, columns.label)
    return Example(texts, choice_index(row, label, texts[1:], columns) if task == "choice" else label, row.where)


def read_texts(row: Row, columns: Columns, task: TaskName) -> tuple[str, ...]:
    """The texts of a row, which may be empty; a DataError for a column that is missing or does not hold a text."""
    texts = tuple(cell_text(row, name) for name in columns.texts)
    if task != "choice":
        return texts
    if columns.choices:
        return (*texts, *(text for name in columns.choices if (text := cell_text(row, name))))
    choices = row.cells.get(CHOICES)
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(choice, str) for choice in choices):
        raise DataError(f"{row.where}: 'choices' must be a list of two or more texts")
    return (*texts, *choices)


def iter_texts(table: Table, columns: Columns, task: TaskName) -> Iterator[tuple[Row, tuple[str, ...]]]:
    """The rows with their texts, one at a time; labels are not read."""
    for row in table:
        yield row, read_texts(row, columns, task)


def cell_text(row: Row, column: str) -> str:
    """A cell that holds a text."""
    value = row.cells.get(column)
    if isinstance(value, str):
        return value
    what = "missing" if column not in row.cells else f"{str(value)[:40]!r}, not a text"
    raise DataError(f"{row.where}: column {column!r} is {what}; its columns are {list_names(list(row.cells))}")


def label_text(row: Row, column: str) -> str:
    """A label as text; numbers and true or false of JSON as they are written there."""
    value: Any = row.cells.get(column)
    if isinstance(value, bool):
        value = str(value).lower()
    if value is None or not isinstance(value, str | int | float) or not str(value).strip():
        what = "empty" if value is None or value == "" else f"{str(value)[:40]!r}"
        raise DataError(f"{row.where}: the label in column {column!r} is {what}; give a word or a number")
    return str(value).strip()


def choice_index(row: Row, label: str, choices: tuple[str, ...], columns: Columns) -> str:
    """The index of the right answer: it is written as an index from 0, a letter, the answer or its column."""
    names = {str(index): index for index in range(len(choices))}
    names |= {letter: index for index, letter in enumerate(LETTERS[: len(choices)])}
    names |= {column: index for index, column in enumerate(columns.choices)}
    names |= {choice: index for index, choice in enumerate(choices)}
    if label not in names:
        raise DataError(
            f"{row.where}: the right answer is {label[:40]!r}; give its index (0 to {len(choices) - 1}), its letter, "
            "its column or the answer itself"
        )
    return str(names[label])

"""The columns of texts and labels in a table, by their names and their cells, and the cells as texts."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from foretell.data.numbers import is_number
from foretell.data.questions import CHAT_FIELDS
from foretell.data.table import Row, Table, list_names
from foretell.errors import DataError, did_you_mean
from foretell.finetuning.settings import Columns

UNNAMED = Columns(texts=())
SAMPLED = 1000  # rows from which columns are guessed
NOT_LABELS = frozenset(("id", "split", "fold", "source", "lang", "language", "date", "time", "author", "user", "url"))
TWO_WORDS = re.compile(r"[^\W\d_]{2,}\s+[^\W\d_]{2,}")

logger = logging.getLogger(__name__)


class EmptyCellError(DataError):
    """The text, label or group of a row is empty."""


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
    texts = [name for name, values in cells.items() if 2 * sum(map(is_sentence, values)) > len(values)]
    distinct = {name: len({*values} - {""}) / len(values) for name, values in cells.items() if name not in texts}
    repeated = [name for name, share in distinct.items() if share < 0.9 and len({*cells[name]} - {""}) > 1]
    label = repeated[0] if len(repeated) == 1 and distinct[repeated[0]] <= 0.1 and is_for_labels(repeated[0]) else None
    return Columns(texts=tuple(texts) if len(texts) == 1 else (), label=label)


def is_for_labels(name: str) -> bool:
    return name.lower() not in NOT_LABELS


def is_sentence(text: str) -> bool:
    return TWO_WORDS.search(text) is not None


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

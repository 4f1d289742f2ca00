"""Documents: sections of paragraphs, formulas, tables and heat maps; tokens, probabilities and numbers in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from foretell.typesetting.expression import Expression, Matrix, format_matrix

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True)
class Formula:
    """A displayed formula, with an optional note above it."""

    expression: Expression
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header. Columns of numbers are right-aligned. `monospace` is for code and commands."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    monospace: bool = False


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Numbers from 0 to 1, (rows, columns), shown as shades."""

    values: np.ndarray
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    caption: str = ""


@dataclass(frozen=True)
class DocumentSection:
    """A title and its parts, which can be sections themselves."""

    title: str
    parts: Sequence[Part]


Part = Paragraph | Formula | Table | HeatMap | DocumentSection


def labelled_table(
    rows: Sequence[str], columns: Sequence[str], values: np.ndarray, digits: int = 4, corner: str = ""
) -> Table:
    """A matrix (rows, columns) as a table with a label for each row and each column."""
    cells = format_matrix(Matrix(values, digits))
    return Table((corner, *columns), [(label, *line) for label, line in zip(rows, cells, strict=True)])


def is_numeric(cell: str) -> bool:
    digits = cell.lstrip("+-−±").replace("∞", "0")
    return digits[:1].isdigit() and not any(letter.isspace() for letter in cell)


def numeric_columns(table: Table) -> list[bool]:
    """For each column: True if its cells are numbers or empty, and not all empty."""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.header)
    return [all(is_numeric(cell) or not cell for cell in column) and any(column) for column in columns]


LONGEST = 24  # largest width in columns of a token in quotes
BAR_WIDTH = 24  # columns


def quoted(text: str) -> str:
    """A token in quotes, `' the'`, with control characters escaped and a long one shortened."""
    shown = repr(text)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 2] + "…" + shown[-1]


def ending(text: str, width: int = 40) -> str:
    """The end of a text in quotes, at most `width` columns wide: `'…of the'`."""
    kept = text
    while cell_len(repr(kept)) > width - (kept != text):
        kept = kept[1:]
    return repr(kept) if kept == text else f"{repr(kept)[0]}…{repr(kept)[1:]}"


def bar(share: float) -> str:
    """A bar of up to BAR_WIDTH columns, light for a negative share; at least one column unless the share is zero."""
    return ("█" if share > 0 else "▒") * max(1 if share else 0, round(BAR_WIDTH * abs(share)))


def fitting(parts: Iterable[str], width: int) -> str:
    """The first parts that fit into `width` columns, joined on one line; at least one part."""
    line = ""
    for part in parts:
        longer = f"{line}  {part}" if line else part
        if line and cell_len(longer) > width:
            break
        line = longer
    return line

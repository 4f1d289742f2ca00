"""Documents: sections of paragraphs, formulas, tables and heat maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from foretell.typesetting.expression import Expression, Matrix, format_matrix


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


def iter_formulas(section: DocumentSection) -> Iterator[Formula]:
    """All formulas, including those of inner sections."""
    for part in section.parts:
        if isinstance(part, Formula):
            yield part
        elif isinstance(part, DocumentSection):
            yield from iter_formulas(part)


def labelled_table(
    rows: Sequence[str], columns: Sequence[str], values: np.ndarray, digits: int = 4, corner: str = ""
) -> Table:
    """A matrix (rows, columns) as a table with a label for each row and each column."""
    cells = format_matrix(Matrix(values, digits))
    return Table((corner, *columns), [(label, *line) for label, line in zip(rows, cells, strict=True)])


def is_numeric(cell: str) -> bool:
    """True if a cell holds a number."""
    digits = cell.lstrip("+-−±").replace("∞", "0")
    return digits[:1].isdigit() and not any(letter.isspace() for letter in cell)


def numeric_columns(table: Table) -> list[bool]:
    """For each column: True if its cells are numbers or empty, and not all empty."""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.header)
    return [all(is_numeric(cell) or not cell for cell in column) and any(column) for column in columns]

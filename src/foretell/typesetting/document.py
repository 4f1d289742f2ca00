"""What is told: sections of paragraphs, formulas, tables and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretell.typesetting.expression import Expression, Matrix, format_matrix


@dataclass(frozen=True)
class Paragraph:
    """Some sentences."""

    text: str


@dataclass(frozen=True)
class Formula:
    """A formula on lines of its own, with a short note on what it is."""

    expression: Expression
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; columns of numbers are set to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Numbers from 0 to 1, (rows, columns), as shades."""

    values: np.ndarray
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    caption: str = ""


@dataclass(frozen=True)
class DocumentSection:
    """A title and what comes under it, sections included."""

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
    """Does a cell look like a number, so that its column reads best from the right?"""
    digits = cell.lstrip("+-−±").replace("∞", "0")
    return digits[:1].isdigit() and not any(letter.isspace() for letter in cell)


def numeric_columns(table: Table) -> list[bool]:
    """For each column: are all its cells numbers (or empty)?"""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.header)
    return [all(is_numeric(cell) or not cell for cell in column) and any(column) for column in columns]

"""Formulas as expression trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RELATIONS = frozenset("=≈<>≤≥→")
DIGITS = 4


@dataclass(frozen=True)
class Symbol:
    """A name: one letter for a variable, several for a function or quantity (`softmax`)."""

    name: str


@dataclass(frozen=True)
class Words:
    """Upright text inside a formula, such as a token."""

    text: str


@dataclass(frozen=True)
class Operator:
    """A sign between two expressions: = + · ..."""

    sign: str


@dataclass(frozen=True)
class Number:
    """A number with `digits` decimals; an int has none."""

    value: float
    digits: int = DIGITS


@dataclass(frozen=True, eq=False)
class Matrix:
    """Numbers (rows, columns) in brackets, with optional row labels outside. A vector (columns,) is one row."""

    values: np.ndarray | Sequence
    digits: int = DIGITS
    row_labels: Sequence[str] = ()

    @property
    def table(self) -> np.ndarray:
        """The numbers as a two-dimensional array."""
        return np.atleast_2d(np.asarray(self.values))


@dataclass(frozen=True)
class MathRow:
    """Expressions side by side, like MathML's mrow."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Fraction:
    """A fraction."""

    top: Expression
    bottom: Expression


@dataclass(frozen=True)
class Root:
    """A square root."""

    inside: Expression


@dataclass(frozen=True)
class Script:
    """A base with a subscript, a superscript, or both: x_i, Kᵀ."""

    base: Expression
    below: Expression | None = None
    above: Expression | None = None


@dataclass(frozen=True)
class Call:
    """A function applied to an expression."""

    name: str
    inside: Expression


Expression = Symbol | Words | Operator | Number | Matrix | MathRow | Fraction | Root | Script | Call


def row(*items: Expression | str) -> MathRow:
    """Expressions side by side; a str is an operator."""
    return MathRow(tuple(Operator(item) if isinstance(item, str) else item for item in items))


def script(base: Expression | str, below: str = "", above: str = "") -> Script:
    """`script("x", "i")` is x with the subscript i."""
    return Script(
        Symbol(base) if isinstance(base, str) else base,
        Symbol(below) if below else None,
        Symbol(above) if above else None,
    )


def format_number(value: float, digits: int = DIGITS) -> str:
    """Fixed decimals; a power of ten for values that these would show as 0, and from a million on."""
    if isinstance(value, int | np.integer):
        return str(value)
    if np.isinf(value):
        return "∞" if value > 0 else "-∞"
    hidden = value != 0 and abs(value) < 0.5 * 10.0**-digits
    return f"{value:.1e}" if hidden or abs(value) >= 1e6 else f"{value + 0.0:.{digits}f}"


def format_matrix(matrix: Matrix) -> list[list[str]]:
    """All numbers of a matrix with fixed decimals, unless even the largest is too small or too large for these."""
    table = matrix.table
    finite = np.abs(table[np.isfinite(table)])
    largest = finite.max(initial=0)
    if table.dtype.kind in "iub" or (largest != 0 and not 10.0**-matrix.digits <= largest < 1e6):
        return [[format_number(value, matrix.digits) for value in line] for line in table]
    return [
        [
            f"{round(value, matrix.digits) + 0.0:.{matrix.digits}f}" if np.isfinite(value) else format_number(value)
            for value in line
        ]
        for line in table
    ]

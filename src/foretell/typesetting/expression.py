"""A formula as a tree: what stands beside, above and below what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RELATIONS = frozenset("=≈<>≤≥→")
DIGITS = 4


@dataclass(frozen=True)
class Symbol:
    """A name: one letter is a variable, several are a function's or a quantity's (`softmax`)."""

    name: str


@dataclass(frozen=True)
class Words:
    """Plain words inside a formula, such as a token's text."""

    text: str


@dataclass(frozen=True)
class Operator:
    """What stands between two things: = + · ..."""

    sign: str


@dataclass(frozen=True)
class Number:
    """A number with so many decimals; whole ones (int) have none."""

    value: float
    digits: int = DIGITS


@dataclass(frozen=True, eq=False)
class Matrix:
    """Numbers (rows, columns) in brackets; a vector (columns,) is one row. Labels stand outside the brackets."""

    values: np.ndarray | Sequence
    digits: int = DIGITS
    row_labels: Sequence[str] = ()

    @property
    def table(self) -> np.ndarray:
        """The numbers, always with two dimensions."""
        return np.atleast_2d(np.asarray(self.values))


@dataclass(frozen=True)
class MathRow:
    """One thing after the other."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Fraction:
    """One thing over another."""

    top: Expression
    bottom: Expression


@dataclass(frozen=True)
class Root:
    """The square root of what is inside."""

    inside: Expression


@dataclass(frozen=True)
class Script:
    """A base with something small below it, above it, or both: x_i, Kᵀ."""

    base: Expression
    below: Expression | None = None
    above: Expression | None = None


@dataclass(frozen=True)
class Call:
    """A function of what is inside the parentheses."""

    name: str
    inside: Expression


Expression = Symbol | Words | Operator | Number | Matrix | MathRow | Fraction | Root | Script | Call


def row(*items: Expression | str) -> MathRow:
    """Things side by side; a str is an operator."""
    return MathRow(tuple(Operator(item) if isinstance(item, str) else item for item in items))


def script(base: Expression | str, below: str = "", above: str = "") -> Script:
    """`script("x", "i")` for x with a small i below."""
    return Script(
        Symbol(base) if isinstance(base, str) else base,
        Symbol(below) if below else None,
        Symbol(above) if above else None,
    )


def format_number(value: float, digits: int = DIGITS) -> str:
    """Fixed decimals where they say something; powers of ten for what they would hide."""
    if isinstance(value, int | np.integer):
        return str(value)
    if np.isinf(value):
        return "∞" if value > 0 else "-∞"
    hidden = value != 0 and abs(value) < 0.5 * 10.0**-digits
    return f"{value:.1e}" if hidden or abs(value) >= 1e6 else f"{value + 0.0:.{digits}f}"


def format_matrix(matrix: Matrix) -> list[list[str]]:
    """All numbers of a matrix alike: powers of ten only where fixed decimals would show nothing of any of them."""
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

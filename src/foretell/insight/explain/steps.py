"""The steps of an explanation as data: sentences, equations and listings of operands; and the formats of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretell.insight.recorded_pass import Array, RecordedPass, TracedScalar
from foretell.typesetting.document import Formula, Paragraph, Part, Table
from foretell.typesetting.expression import Call, Expression, Fraction, MathRow, Number, Operator, Symbol, row, script

FIRST_SHOWN = 6  # first rows shown of a long listing, before the row in focus, the last row and the sum of the rest
DIGITS = 6

Column = Sequence[Any] | Array


@dataclass(frozen=True)
class Remark:
    """A sentence."""

    text: str

    def parts(self) -> list[Part]:
        return [Paragraph(self.text)]

    def to_json(self) -> dict[str, Any]:
        return {"remark": self.text}


@dataclass(frozen=True)
class Equation:
    """A formula with its numbers and its result."""

    expression: Expression
    value: float
    note: str = ""
    operands: Mapping[str, str] = field(default_factory=dict)

    def parts(self) -> list[Part]:
        return [*sources(self.operands), Formula(self.expression, self.note)]

    def to_json(self) -> dict[str, Any]:
        return {"value": plain(self.value), "note": self.note, "operands": dict(self.operands)}


@dataclass(frozen=True)
class Listing:
    """A table of operands, one per row, with a note or their addresses.

    summed: the columns to add up. focus: the row of the explained value, which is always shown. operands: the addresses
    of columns, with ":" for the entry of the first column; "[:,3,:]" is the concatenation of a row of all heads. opens:
    addresses of further columns, which are links on the page only.
    """

    note: str
    columns: Mapping[str, Column]
    summed: tuple[str, ...] = ()
    focus: int | None = None
    operands: Mapping[str, str] = field(default_factory=dict)
    opens: Mapping[str, str] = field(default_factory=dict)
    sums: dict[str, float] = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "sums", {name: math.fsum(self.columns[name]) for name in self.summed})

    def parts(self) -> list[Part]:
        rows = self._shown_rows()
        cells = [[cell(column[row]) for column in self.columns.values()] for row in rows]
        left_out = self.length - len(rows)
        if left_out > 1:
            cells.insert(len(rows) - 1, self._row(f"… {left_out} more", self._rest(rows)))
        if self.summed:
            cells.append(self._row("sum", self.sums))
        above: list[Part] = [Paragraph(self.note)] if self.note else []
        return [*above, *sources(self.operands), Table(list(self.columns), cells)]

    def to_json(self) -> dict[str, Any]:
        columns = {name: [plain(entry) for entry in column] for name, column in self.columns.items()}
        rest = {"operands": {**self.operands, **self.opens}, "columns": columns, "sums": self.sums, "row": self.focus}
        return {"listing": self.note, **rest}

    @property
    def length(self) -> int:
        return len(next(iter(self.columns.values())))

    def _shown_rows(self) -> list[int]:
        """The first rows, the row in focus and the last row; all rows if only one would be left out."""
        if self.length <= FIRST_SHOWN + 2:
            return list(range(self.length))
        shown = {*range(FIRST_SHOWN), self.length - 1} | ({self.focus} if self.focus is not None else set())
        return sorted(shown)

    def _rest(self, rows: list[int]) -> dict[str, float]:
        left_out = sorted(set(range(self.length)) - set(rows))
        return {name: math.fsum(self.columns[name][row] for row in left_out) for name in self.summed}

    def _row(self, label: str, numbers: Mapping[str, float]) -> list[str]:
        _, *others = self.columns
        return [label, *(cell(numbers[name]) if name in numbers else "" for name in others)]


Step = Remark | Equation | Listing


@dataclass(frozen=True)
class Working:
    """The steps that compute a value, the value, and `scale`: its possible rounding error in epsilons of the dtype.

    For a sum, for example, the scale is the sum of the absolute addends, each of which may have been rounded once.
    has_operands: False if the steps only name what the value is computed from.
    """

    steps: Sequence[Step]
    value: float
    scale: float
    has_operands: bool = True


Explainer = Callable[[RecordedPass, TracedScalar], Working]


def sources(operands: Mapping[str, str]) -> list[Part]:
    return [Table(("", "", ""), [(name, "=", source) for name, source in operands.items()])] if operands else []


def cell(entry: Any) -> str:
    return str(entry) if isinstance(entry, str | int) else number_text(float(entry))


def number_text(value: float) -> str:
    """A number with fixed decimals, or in scientific notation if it is very small or large."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    hidden = value != 0 and abs(value) < 10.0 ** (2 - DIGITS)
    return f"{value:.{DIGITS - 3}e}" if hidden or abs(value) >= 1e6 else f"{value + 0.0:.{DIGITS}f}"


def plain(entry: Any) -> Any:
    """A value for JSON, including nested values; non-finite numbers become strings."""
    if isinstance(entry, Mapping):
        return {name: plain(value) for name, value in entry.items()}
    if isinstance(entry, list | tuple):
        return [plain(value) for value in entry]
    if isinstance(entry, np.ndarray | np.generic):
        return plain(entry.tolist())
    if entry is None or isinstance(entry, str | int):
        return entry
    return float(entry) if math.isfinite(entry) else str(float(entry))


def multiply_out(
    operands: dict[str, str], factors: dict[str, Array], note: str = "", stored: Mapping[str, Column] | None = None
) -> Listing:
    """The elementwise products of two vectors w and x, and their sum "w · x". stored: the columns behind w."""
    (left_name, left), (right_name, right) = factors.items()
    product = f"{left_name} · {right_name}"
    columns = {"element": range(len(left)), **(stored or {}), **factors, product: left * right}
    return Listing(note, columns, (product,), operands=operands)


def written(*items: str | float | Expression) -> MathRow:
    """A row of expressions: names and signs, as in "x + y =", and numbers; floats have six digits."""
    parts: list[Expression] = []
    for item in items:
        if isinstance(item, str):
            parts += [Symbol(word) if word.isalpha() else Operator(word) for word in item.split()]
        elif isinstance(item, int | float):
            parts.append(Number(item, DIGITS))
        else:
            parts.append(item)
    return MathRow(tuple(parts))


def equals(
    value: float, *left: str | float | Expression, note: str = "", operands: Mapping[str, str] | None = None
) -> Equation:
    """The equation `left = value`; for `left` see `written`."""
    return Equation(written(*left, "=", value), value, note, operands or {})


def quotient(top: float, bottom: float) -> Expression:
    return Fraction(Number(top, DIGITS), Number(bottom, DIGITS))


def exponentials_of(scores: Array) -> Array:
    """exp of each score minus the largest, which avoids overflow; divided by their sum, they are the softmax."""
    return np.exp(scores - scores.max())


def softmax_equation(name: str, exponentials: Array, index: int, letter: str) -> Equation:
    """exp at one index divided by the sum of all exp."""
    total = exponentials.sum()
    formula = Fraction(script("exp", str(index)), row(script("Σ", letter), script("exp", letter)))
    numbers = quotient(float(exponentials[index]), float(total))
    return equals(float(exponentials[index] / total), f"{name} =", formula, "=", numbers)


def mean_equation(listing: Listing, *title: str | Expression) -> Equation:
    """The mean of the last summed column of a listing."""
    total, count = listing.sums[listing.summed[-1]], listing.length
    return equals(total / count, *(title or ("mean =",)), quotient(total, count))


def difference(a: float, b: float, first: str, second: str) -> Working:
    """a - b for two numbers with their addresses."""
    equation = equals(a - b, "a - b =", a, *plus(-b), operands={"a": first, "b": second})
    return Working([equation], equation.value, abs(a) + abs(b))


def unchanged(remark: str, value: float, name: str = "x") -> Working:
    """A number that equals another one, named in the remark."""
    return Working([Remark(remark), equals(value, name)], value, 0.0)


def scale_of(products: Listing) -> float:
    """The sum of the absolute values in the last summed column of a listing."""
    return math.fsum(float(np.abs(products.columns[name]).sum()) for name in products.summed)


def factor(value: float) -> float | Expression:
    """A number after an operator: in parentheses if it is negative."""
    return Call("", Number(value, DIGITS)) if value < 0 else value


def plus(value: float) -> tuple[str, float]:
    """An operator and a number: `+ 1.5`, `- 1.5`."""
    return ("-", -value) if value < 0 else ("+", value)


def applied(function: str, value: float) -> Expression:
    return Call(function, Number(value, DIGITS))

"""Formulas as expression trees; `read_formula` reads one from text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from foretell.errors import UsageError
from foretell.typesetting.numbers import format_number

if TYPE_CHECKING:  # NumPy is imported in functions, so that a display without numbers starts without it
    import numpy as np

RELATIONS = frozenset("=≈<>≤≥→")
DIGITS = 4
MAX_NUMBERS = 16  # rows and columns of a matrix in HTML; larger ones show their edges


class Expression:
    """Base class of the parts of a formula."""


@dataclass(frozen=True)
class Symbol(Expression):
    """A name: one letter for a variable, several for a function or quantity (`softmax`)."""

    name: str


@dataclass(frozen=True)
class Operator(Expression):
    """A sign between two expressions: = + · ..."""

    sign: str


@dataclass(frozen=True)
class Number(Expression):
    """A number with `digits` decimals; an int has none."""

    value: float
    digits: int = DIGITS


@dataclass(frozen=True, eq=False)
class Matrix(Expression):
    """Numbers (rows, columns) in brackets, with optional row labels outside. A vector (columns,) is one row.

    Large matrices show their edges.
    """

    values: np.ndarray | Sequence
    digits: int = DIGITS
    row_labels: Sequence[str] = ()

    @property
    def table(self) -> np.ndarray:
        import numpy as np

        return np.atleast_2d(np.asarray(self.values))


@dataclass(frozen=True, eq=False)
class SymbolMatrix(Expression):
    """A matrix of expressions (rows, columns), for unknown numbers. A str is a name, a figure or dots."""

    cells: Sequence[Sequence[Expression | str]]
    row_labels: Sequence[str] = ()

    @property
    def table(self) -> list[list[Expression]]:
        return [[Symbol(cell) if isinstance(cell, str) else cell for cell in line] for line in self.cells]


@dataclass(frozen=True)
class MathRow(Expression):
    """Expressions side by side, like MathML's mrow."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Fraction(Expression):
    """A fraction."""

    top: Expression
    bottom: Expression


@dataclass(frozen=True)
class Root(Expression):
    """A square root."""

    inside: Expression


@dataclass(frozen=True)
class Script(Expression):
    """A base with a subscript, a superscript, or both: x_i, Kᵀ. T above is a transpose, except above a sum."""

    base: Expression
    below: Expression | None = None
    above: Expression | None = None

    @property
    def is_sum(self) -> bool:
        """True for a sum, whose limits are below and above it."""
        return self.base == Symbol("Σ")


@dataclass(frozen=True)
class Call(Expression):
    """A function applied to an expression; without a name, parentheses."""

    name: str
    inside: Expression


def row(*items: Expression | str | float | np.ndarray | Sequence) -> MathRow:
    """Expressions side by side; see `as_expression` for strings, numbers and arrays."""
    return MathRow(tuple(as_expression(item) for item in items))


def as_expression(item: Any) -> Expression:
    """The expression itself, a str as an operator, numbers and arrays as `array` shows them."""
    if isinstance(item, Expression):
        return item
    return Operator(item) if isinstance(item, str) else array(item)


def array(values: Any, digits: int = DIGITS) -> Expression:
    """Any array of numbers as a formula: a number, a matrix, or for more than two axes a row of matrices.

    Raises UsageError if the values are not numbers, or there are none.
    """
    import numpy as np

    numbers = np.asarray(values)
    if numbers.dtype.kind not in "biuf" or numbers.size == 0:
        raise UsageError(f"an array of {numbers.dtype} with the shape {numbers.shape} cannot be shown as numbers")
    numbers = numbers.astype(int) if numbers.dtype.kind == "b" else numbers  # a mask of ones and zeros
    if numbers.ndim == 0:
        return Number(numbers.item(), digits)
    if numbers.ndim <= 2:
        return Matrix(numbers, digits)
    matrices = shortened([Matrix(matrix, digits) for matrix in numbers.reshape(-1, *numbers.shape[-2:])], MAX_NUMBERS)
    separated = [part for matrix in matrices for part in (",", matrix)]
    return row(*separated[1:])


def script(base: Expression | str, below: str = "", above: str = "") -> Script:
    """`script("x", "i")` is x with the subscript i."""
    return Script(
        Symbol(base) if isinstance(base, str) else base,
        Symbol(below) if below else None,
        Symbol(above) if above else None,
    )


def shortened(items: Sequence, most: int) -> list:
    """The items, or the first ones, "…" and the last one if there are more than `most`.

    For the rows of a matrix, a row of "…" replaces the middle.
    """
    if len(items) <= most:
        return list(items)
    left_out = ["…"] * len(items[0]) if isinstance(items[0], list) else "…"
    return [*items[: most - 2], left_out, items[-1]]


def format_matrix(matrix: Matrix) -> list[list[str]]:
    """All numbers of a matrix with fixed decimals, unless the largest is too small or too large for that."""
    import numpy as np

    table = matrix.table
    finite = np.abs(table[np.isfinite(table)])
    largest = finite.max(initial=0)
    if table.dtype.kind in "iub" or (largest != 0 and not 10.0**-matrix.digits <= largest < 1e6):
        return [[format_number(value, matrix.digits) for value in line] for line in table]
    return [
        [
            f"{round(value, matrix.digits) + 0.0:.{matrix.digits}f}" if math.isfinite(value) else format_number(value)
            for value in line
        ]
        for line in table
    ]


TOKEN = re.compile(
    r"""\s*(?:
    \{\{ \s* (?P<value>\w+) \s* \}\}
    | \\text\{ (?P<text>[^{}]*) \}
    | (?P<command>\\\w+)
    | (?P<number>\d+ (?: \.\d+ )?)
    | (?P<function>[^\W\d_]+)? (?P<open>\()
    | (?P<name>[∂∇]? [^\W\d_]+ [\N{COMBINING CIRCUMFLEX ACCENT}′]*)
    | (?P<mark>[_^]) (?P<script>\w | \{[^{}]*\} )
    | (?P<sign>\S)
    )\s*""",
    re.VERBOSE,
)
WIDE_SPACE = Symbol("  ")
BRACES_AND_PARENTHESES = "{})"


def read_formula(text: str, values: Mapping[str, Any]) -> Expression:
    r"""The expression that a text describes.

    `{{ name }}` is a value. Names are letters; a name with a parenthesis right after it is a function. Commands are
    \frac{}{}, \sqrt{}, \quad, and \text{} for a name of any characters. Sub- and superscripts are one name each.

    Raises UsageError if a brace or parenthesis has no partner, or a command is unknown.
    """
    return _FormulaReader(text, values).read()


class _FormulaReader:
    """Reads the tokens of one formula, from left to right."""

    def __init__(self, text: str, values: Mapping[str, Any]):
        self.text, self.values, self.tokens = text, values, TOKEN.finditer(text)

    def read(self, end: str = "") -> Expression:
        """The expressions up to the sign `end`, or to the end of the text; more than one become a row."""
        items: list[Expression] = []
        for token in self.tokens:
            if token["sign"] and token["sign"] in BRACES_AND_PARENTHESES:
                if token["sign"] != end:
                    raise self.error(f"'{token['sign']}' without a partner")
                break
            if token["mark"]:
                items.append(_with_script(items.pop() if items else Symbol(""), token["mark"], token["script"]))
            else:
                items.append(self.expression(token))
        else:
            if end:
                raise self.error(f"'{end}' is missing")
        return items[0] if len(items) == 1 else MathRow(tuple(items))

    def expression(self, token: re.Match[str]) -> Expression:
        """The expression that starts with a token."""
        if token["value"]:
            return as_expression(self.values[token["value"]])
        if token["open"]:
            return Call(token["function"] or "", self.read(")"))
        if token["command"]:
            return self.command(token["command"])
        if number := token["number"]:
            return Number(float(number), len(number.partition(".")[2])) if "." in number else Number(int(number))
        return Operator(token["sign"]) if token["sign"] else Symbol(token["name"] or token["text"])

    def command(self, name: str) -> Expression:
        if name == r"\frac":
            return Fraction(self.argument(), self.argument())
        if name == r"\sqrt":
            return Root(self.argument())
        if name == r"\quad":
            return WIDE_SPACE
        raise self.error(f"unknown command {name}")

    def argument(self) -> Expression:
        """The text in the braces that follow."""
        token = next(self.tokens, None)
        if token is None or token["sign"] != "{":
            raise self.error("'{' is missing")
        return self.read("}")

    def error(self, message: str) -> UsageError:
        return UsageError(f"formula '{self.text}': {message}")


def _with_script(base: Expression, mark: str, script: str) -> Script:
    """The base with a subscript or superscript, in addition to one that it has."""
    scripted = base if isinstance(base, Script) else Script(base)
    return replace(scripted, **{"below" if mark == "_" else "above": Symbol(script.strip("{}"))})

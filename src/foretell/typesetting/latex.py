"""Formulas as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from foretell.typesetting.document import DocumentSection, Formula
from foretell.typesetting.expression import (
    Call,
    Expression,
    Fraction,
    MathRow,
    Matrix,
    Number,
    Operator,
    Root,
    Script,
    Symbol,
    Words,
    format_matrix,
    format_number,
)

SIGNS = {"·": r"\cdot", "−∞": r"-\infty", "≈": r"\approx", "≤": r"\le", "≥": r"\ge", "→": r"\to", "⊙": r"\odot"}
ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
ESCAPES |= {letter: f"\\{letter}" for letter in "&%$#_{}"}
NAMES = {
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "ε": r"\varepsilon", "η": r"\eta", "θ": r"\theta",
    "μ": r"\mu", "σ": r"\sigma", "⊤": r"\top", "T": r"\top", "Σ": r"\sum", "∇": r"\nabla", "Δ": r"\Delta",
}  # fmt: skip


def latex(expression: Expression) -> str:
    """A formula, without dollar signs."""
    return LATEX[type(expression)](expression)


def document_latex(section: DocumentSection) -> str:
    """All formulas of a document as one display block; empty if there are none."""
    lines = [latex(formula.expression) for formula in iter_formulas(section)]
    return "" if not lines else "$$\\begin{gathered}\n" + " \\\\\n".join(lines) + "\n\\end{gathered}$$"


def iter_formulas(section: DocumentSection) -> Iterator[Formula]:
    """All formulas, including those of inner sections."""
    for part in section.parts:
        if isinstance(part, Formula):
            yield part
        elif isinstance(part, DocumentSection):
            yield from iter_formulas(part)


def _number(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    mantissa = mantissa.replace("∞", r"\infty")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if exponent else mantissa


def _words(text: str) -> str:
    escaped = "".join(ESCAPES.get(letter, letter) for letter in text)
    return rf"\text{{{escaped}}}"


def _symbol(symbol: Symbol) -> str:
    if symbol.name in NAMES and symbol.name != "T":
        return NAMES[symbol.name]
    if len(symbol.name) == 1:
        return symbol.name
    if re.fullmatch(r"[0-9.,+-]+", symbol.name):
        return symbol.name
    return rf"\operatorname{{{_words(symbol.name)[6:-1]}}}"


def _matrix(matrix: Matrix) -> str:
    cells = format_matrix(matrix)
    body = r" \\ ".join(" & ".join(_number(cell) for cell in line) for line in cells)
    bracketed = rf"\left[\begin{{array}}{{{'r' * len(cells[0])}}} {body} \end{{array}}\right]"
    if not matrix.row_labels:
        return bracketed
    labels = r" \\ ".join(_words(label) for label in matrix.row_labels)
    return rf"\begin{{array}}{{r}} {labels} \end{{array}} {bracketed}"


def _script(script: Script) -> str:
    below = f"_{{{latex(script.below)}}}" if script.below else ""
    above = ""
    if script.above:
        is_transpose = isinstance(script.above, Symbol) and script.above.name in ("T", "⊤")
        above = r"^{\top}" if is_transpose else f"^{{{latex(script.above)}}}"
    return f"{{{latex(script.base)}}}{below}{above}"


LATEX: dict[type, Callable[..., str]] = {
    Symbol: _symbol,
    Words: lambda words: _words(words.text),
    Operator: lambda operator: SIGNS.get(operator.sign, operator.sign),
    Number: lambda number: _number(format_number(number.value, number.digits)),
    Matrix: _matrix,
    MathRow: lambda row: " ".join(latex(item) for item in row.items),
    Fraction: lambda fraction: rf"\frac{{{latex(fraction.top)}}}{{{latex(fraction.bottom)}}}",
    Root: lambda root: rf"\sqrt{{{latex(root.inside)}}}",
    Script: _script,
    Call: lambda call: rf"{_symbol(Symbol(call.name))}\left({latex(call.inside)}\right)",
}

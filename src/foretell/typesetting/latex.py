"""LaTeX: the base class of expressions, which a notebook shows, and the spelling of names, words and numbers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

SIGNS = {
    "log": r"\log",
    "·": r"\cdot", "≈": r"\approx", "≤": r"\le", "≥": r"\ge", "→": r"\to", "←": r"\gets", "⊙": r"\odot",
    "∝": r"\propto", "…": r"\dots", "⋮": r"\vdots", "⋱": r"\ddots",
    "|": r"\mid", "∞": r"\infty", "-∞": r"-\infty", "−∞": r"-\infty",
}  # fmt: skip
ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
ESCAPES |= {letter: f"\\{letter}" for letter in "&%$#_{}"}
NAMES = {
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "ε": r"\varepsilon", "η": r"\eta", "θ": r"\theta", "Θ": r"\Theta",
    "μ": r"\mu", "σ": r"\sigma", "τ": r"\tau", "⊤": r"\top", "Σ": r"\sum", "∇": r"\nabla", "Δ": r"\Delta",
}  # fmt: skip
INDEX = re.compile(r"(?!.*[A-Za-z]{2})[A-Za-z0-9=+,./-]+")  # figures, and what is below or above: t=1, 2i+1


class LatexExpression(ABC):
    """Base class of expressions: a notebook shows one that is the last value of a cell as a formula."""

    @abstractmethod
    def latex(self) -> str:
        """The formula, without dollar signs."""

    def _repr_latex_(self) -> str:
        return rf"$\displaystyle {self.latex()}$"


def latex(expression: LatexExpression) -> str:
    """A formula, without dollar signs."""
    return expression.latex()


def display(lines: list[str]) -> str:
    """Formulas as one display block, a line each; empty without formulas."""
    return "" if not lines else "$$\\begin{gathered}\n" + " \\\\\n".join(lines) + "\n\\end{gathered}$$"


def sign_latex(sign: str) -> str:
    """An operator."""
    return SIGNS.get(sign, sign)


def number_latex(text: str) -> str:
    """A number as `format_number` writes it; an exponent becomes a power of ten."""
    mantissa, _, exponent = text.partition("e")
    mantissa = mantissa.replace("∞", r"\infty").replace("…", r"\dots")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if exponent else mantissa


def words_latex(text: str) -> str:
    """Upright text."""
    return rf"\text{{{_escaped(text)}}}"


def name_latex(name: str) -> str:
    """A symbol's name: a Greek letter, one letter, digits, or an upright name."""
    if name in NAMES or name in SIGNS:
        return NAMES.get(name) or SIGNS[name]
    if len(name) == 1 or INDEX.fullmatch(name):
        return name if name not in ESCAPES else _escaped(name)
    return rf"\operatorname{{{_escaped(name)}}}"


def _escaped(text: str) -> str:
    return "".join(ESCAPES.get(letter, letter) for letter in text)

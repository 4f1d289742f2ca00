"""Formulas as MathML and documents as HTML, without scripts; `Shown`, a result displayed as text and HTML."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Protocol, TypeVar

from foretell.storage.files import GENERATOR
from foretell.typesetting.document import DocumentSection, Formula, HeatMap, Paragraph, Table, numeric_columns
from foretell.typesetting.expression import (
    MAX_NUMBERS,
    RELATIONS,
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
    SymbolMatrix,
    format_matrix,
    shortened,
)
from foretell.typesetting.numbers import format_number
from foretell.typesetting.text import break_lines, document_text, items_of, segments

FORMULA_WIDTH = 72  # width that fits the page, in characters of the text form
MAX_CELLS = 32  # rows and columns of a heat map; larger ones show their edges

# Brackets are drawn as borders: without a mathematics font, browsers do not stretch <mo>
BRACKETS = "border:solid currentColor;border-width:0 1.5px;border-radius:7px;padding:0 0.35em;margin:0 0.15em"
HARD_SPACE = "\N{NO-BREAK SPACE}"  # browsers collapse several plain spaces into one
STRONGEST = 0.7  # opacity for 1 in a heat map, on light and dark backgrounds: text has a contrast of at least 4.5
RIGHT = "text-align:right;text-align:-webkit-right"  # Chromium aligns MathML only with the second value
STRUT = '<mspace width="0" height="0.8em" depth="0.25em"/>'  # gives labels and numbers the same line height


def page(title: str, section: DocumentSection) -> str:
    """A self-contained page that follows the reader's light or dark preference."""
    style = files("foretell.typesetting").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{GENERATOR}\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"{fragment(section)}\n</main>\n</body>\n</html>\n"
    )


def fragment(section: DocumentSection, level: int = 1) -> str:
    """A document as part of a page; its title is a heading of this level."""
    heading = f"<h{level}>{escape(section.title)}</h{level}>" if section.title else ""
    return "\n".join(["<section>" + heading, *(PARTS[type(part)](part, level) for part in section.parts), "</section>"])


def mathml(expression: Expression) -> str:
    """A displayed formula.

    With two relations or more, one line per relation, aligned. A formula too wide for a page breaks at the same places
    as in a terminal.
    """
    first, *others = segments(items_of(expression), RELATIONS)
    if len(others) > 1:
        right = [line for other in others for line in break_lines(MathRow(tuple(other)), FORMULA_WIDTH, MAX_NUMBERS)]
        return _displayed(_rows(zip([first, *[()] * (len(right) - 1)], right, strict=True)))
    broken = break_lines(expression, FORMULA_WIDTH, MAX_NUMBERS)
    return _displayed(_rows(((), line) for line in broken) if len(broken) > 1 else _math(expression))


def _displayed(content: str) -> str:
    return f'<math display="block" style="text-align:left">{content}</math>'


def _rows(lines: Iterable[tuple[Sequence[Expression], Sequence[Expression]]]) -> str:
    """Lines of a formula; each has a left part, right-aligned, and a right part."""
    rows = "".join(
        f'<mtr><mtd style="{RIGHT}">{_math(MathRow(tuple(left)))}</mtd>'
        f'<mtd style="text-align:left">{_math(MathRow(tuple(right)))}</mtd></mtr>'
        for left, right in lines
    )
    return f'<mtable displaystyle="true">{rows}</mtable>'


def _math(expression: Expression) -> str:
    return MATH[type(expression)](expression)


def _number(text: str) -> str:
    """A number with a true minus sign, and an exponent as a power of ten."""
    mantissa, _, exponent = text.partition("e")
    sign = "<mo>−</mo>" if mantissa.startswith("-") else ""
    digits = f"<mn>{mantissa.lstrip('-')}</mn>"
    power = f"<mo>·</mo><msup><mn>10</mn><mn>{int(exponent)}</mn></msup>" if exponent else ""
    return f"<mrow>{sign}{digits}{power}</mrow>"


def _matrix(matrix: Matrix) -> str:
    lines = shortened([shortened(line, MAX_NUMBERS) for line in format_matrix(matrix)], MAX_NUMBERS)
    cells = [[_number(cell) if cell != "…" else "<mo>…</mo>" for cell in line] for line in lines]
    return _bracketed(cells, shortened(matrix.row_labels, MAX_NUMBERS))


def _symbol_matrix(matrix: SymbolMatrix) -> str:
    return _bracketed([[_math(cell) for cell in line] for line in matrix.table], matrix.row_labels)


def _bracketed(cells: Sequence[Sequence[str]], row_labels: Sequence[str]) -> str:
    """A matrix of MathML cells, with labels on its left."""
    lines = ("".join(f'<mtd style="{RIGHT}">{STRUT}{cell}</mtd>' for cell in line) for line in cells)
    body = f'<mtable style="{BRACKETS}">{"".join(f"<mtr>{line}</mtr>" for line in lines)}</mtable>'
    if not row_labels:
        return f"<mrow>{body}</mrow>"
    labels = "".join(
        f'<mtr><mtd style="{RIGHT}">{STRUT}<mtext>{escape(label).replace(" ", HARD_SPACE)}</mtext></mtd></mtr>'
        for label in row_labels
    )
    return f"<mrow><mtable>{labels}</mtable>{body}</mrow>"


def _operator(operator: Operator) -> str:
    bar = ' stretchy="false" lspace="0.28em" rspace="0.28em"' if operator.sign == "|" else ""
    return f"<mo{bar}>{escape(operator.sign.replace('-', '−'))}</mo>"


def _call(call: Call) -> str:
    """A function with its argument in parentheses, which are tall only around tall expressions."""
    size = "" if _is_tall(call.inside) else ' stretchy="false"'
    return f"<mrow><mi>{escape(call.name)}</mi><mo{size}>(</mo>{_math(call.inside)}<mo{size}>)</mo></mrow>"


def _is_tall(expression: Expression) -> bool:
    """True if taller than a line. Without a mathematics font, parentheses grow in large steps."""
    if isinstance(expression, Call | Root):
        return _is_tall(expression.inside)
    if isinstance(expression, MathRow):
        return any(map(_is_tall, expression.items))
    return isinstance(expression, Fraction | Matrix | SymbolMatrix) or (
        isinstance(expression, Script) and (expression.is_sum or _is_tall(expression.base))
    )


def _script(script: Script) -> str:
    base = _math(script.base) if not script.is_sum else '<mo largeop="true" movablelimits="false">∑</mo>'
    marks = [_math(mark) for mark in (script.below, script.above) if mark]
    if not marks:
        return base
    both, below = ("munderover", "munder") if script.is_sum and script.below else ("msubsup", "msub")
    tag = both if len(marks) == 2 else below if script.below else "msup"
    return f"<{tag}>{base}{''.join(marks)}</{tag}>"


MATH: dict[type, Callable[..., str]] = {
    Symbol: lambda symbol: f"<mi>{escape(symbol.name)}</mi>",
    Operator: _operator,
    Number: lambda number: _number(format_number(number.value, number.digits)),
    Matrix: _matrix,
    SymbolMatrix: _symbol_matrix,
    MathRow: lambda row: "<mrow>" + "".join(_math(item) for item in row.items) + "</mrow>",
    Fraction: lambda fraction: f"<mfrac>{_math(fraction.top)}{_math(fraction.bottom)}</mfrac>",
    Root: lambda root: f"<msqrt>{_math(root.inside)}</msqrt>",
    Script: _script,
    Call: _call,
}


def _prose(text: str) -> str:
    """Running text. An option such as --seed is not broken at its hyphens."""
    return re.sub(r"(?<!\S)--[\w-]+", r'<span style="white-space:nowrap">\g<0></span>', escape(text))


def _formula(formula: Formula, level: int) -> str:
    note = f"<p>{escape(formula.note)}</p>" if formula.note else ""
    return f"{note}{_scrolling('Formula', mathml(formula.expression))}"


def _scrolling(label: str, content: str) -> str:
    """A part that scrolls if it is wider than the page, with keyboard focus and a label for screen readers."""
    return f'<div class="scroll" style="overflow-x:auto" tabindex="0" role="group" aria-label="{label}">{content}</div>'


def _table(table: Table, level: int) -> str:
    sides = ["right" if numeric else "left" for numeric in numeric_columns(table)]
    style = ' style="font-family:ui-monospace,monospace;font-size:0.85em"' if table.monospace else ""
    header = _line("th", table.header, sides) if any(table.header) else ""
    return _framed(style, header + "".join(_line("td", row, sides) for row in table.rows))


def _line(tag: str, cells: Sequence[str], sides: list[str]) -> str:
    return "<tr>" + "".join(_cell(tag, cell, side) for cell, side in zip(cells, sides, strict=True)) + "</tr>"


def _cell(tag: str, text: str, side: str) -> str:
    """A cell; an empty one is never a heading."""
    opening, closing = ('th scope="col"', "th") if tag == "th" and text.strip() else ("td", "td")
    space = "pre" if side == "right" else "pre-wrap"  # a number never breaks at its minus sign
    return f'<{opening} style="text-align:{side};white-space:{space}">{escape(text)}</{closing}>'


def _heat_map(heat_map: HeatMap, level: int) -> str:
    columns = shortened(heat_map.column_labels, MAX_CELLS)
    header = "<tr><td></td>" + "".join(_heat_label("col", label) for label in columns) + "</tr>"
    rows = []
    for label, values in zip(heat_map.row_labels[:MAX_CELLS], heat_map.values, strict=False):
        cells = "".join(_heat_cell(value) for value in shortened(values.tolist(), MAX_CELLS))
        rows.append(f"<tr>{_heat_label('row', label)}{cells}</tr>")
    left_out = len(heat_map.row_labels) - len(rows)
    more = f"<p>{left_out} more rows are left out.</p>" if left_out > 0 else ""
    caption = f"<caption>{escape(heat_map.caption)}</caption>" if heat_map.caption else ""
    style = ' style="border-collapse:collapse;text-align:center;font-size:0.8em"'
    return _framed(style, f"{caption}{header}{''.join(rows)}") + more


def _framed(style: str, content: str) -> str:
    """A table that scrolls.

    `cellpadding` pads the cells where there is no style sheet, such as in an exported notebook.
    """
    return _scrolling("Table", f'<table cellpadding="4"{style}>{content}</table>')


def _heat_label(scope: str, label: str) -> str:
    turned = ";writing-mode:sideways-lr" if scope == "col" else ""  # no wider than a cell
    return f'<th scope="{scope}" style="white-space:pre{turned}">{escape(label)}</th>'


def _heat_cell(value: float | str) -> str:
    if isinstance(value, str):
        return f"<td>{value}</td>"
    opacity = STRONGEST * min(max(value, 0.0), 1.0)
    style = f"background:rgba(31,119,180,{opacity:.3f});padding:0;min-width:3em;height:3em;box-sizing:border-box"
    return f'<td style="{style}" title="{value:.4f}">{value:.2f}</td>'


PARTS: dict[type, Callable[..., str]] = {
    Paragraph: lambda paragraph, level: f"<p>{_prose(paragraph.text)}</p>",
    Formula: _formula,
    Table: _table,
    HeatMap: _heat_map,
    DocumentSection: lambda section, level: fragment(section, min(level + 1, 6)),
}


class ShowsHtml(Protocol):
    """A result that a notebook can display."""

    def _repr_html_(self) -> str: ...


Item = TypeVar("Item", bound=ShowsHtml)


class Shown(ABC):
    """Base class of results that display as a document, without scripts."""

    @abstractmethod
    def document(self) -> DocumentSection:
        """The document to display."""

    @property
    def subject(self) -> str:
        """The text or number that the result is about, on one line."""
        return self.document().title

    def __str__(self) -> str:
        return document_text(self.document())

    def __repr__(self) -> str:
        """One line; dataclasses need repr=False to use it instead of a list of all fields."""
        return f"{type(self).__name__} of {self.subject} (print shows it)"

    def _repr_html_(self) -> str:
        return fragment(self.document(), level=3)


class ShownList(list[Item]):
    """A list of results that displays them below each other. It equals any list of the same items."""

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self)) or "[]"

    def _repr_html_(self) -> str:
        return "\n".join(item._repr_html_() for item in self) or "[]"

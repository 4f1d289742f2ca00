"""Formulas and documents as text for a terminal: blocks of characters, side by side or stacked."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from foretell.typesetting.document import DocumentSection, Formula, HeatMap, Paragraph, Table, numeric_columns
from foretell.typesetting.expression import (
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

WIDTH = 80
INDENT = "  "
MAX_ROWS = 16
COLUMN_LIMITS = (10_000, 16, 12, 8, 6, 5, 4, 3)  # columns of a matrix, reduced in this order until the formula fits
SHADES = " ░▒▓█"
BELOW: dict[str, str] = dict(zip("0123456789+-=()aehijklmnoprstuvx,", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ,", strict=True))
ABOVE: dict[str, str] = dict(zip("0123456789+-=()inT⊤", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁱⁿᵀᵀ", strict=True))
ELIDED = "…"
DOTS = "…⋮⋱"
BRACKETS = {  # a one-line bracket, then the top, middle and bottom of a tall one
    "[": ("[", "⎡", "⎢", "⎣"),
    "]": ("]", "⎤", "⎥", "⎦"),
    "(": ("(", "⎛", "⎜", "⎝"),
    ")": (")", "⎞", "⎟", "⎠"),
}


@dataclass(frozen=True)
class TextBlock:
    """Lines of equal width. `baseline` is the line that aligns with the blocks on either side."""

    lines: tuple[str, ...]
    baseline: int = 0

    @property
    def width(self) -> int:
        """Width in terminal columns."""
        return cell_len(self.lines[0])


def document_text(section: DocumentSection, width: int = WIDTH) -> str:
    """A document as text. No line exceeds `width` terminal columns, except if a word does."""
    return "\n".join(_section(section, width, "═"))


def expression_lines(expression: Expression, width: int = WIDTH) -> list[str]:
    """A formula in two dimensions. A wide formula continues on further lines; large matrices show their edges."""
    for limit in COLUMN_LIMITS:
        rows = [_joined(items, limit) for items in break_lines(expression, width, limit)]
        if max(block.width + len(INDENT) * bool(index) for index, block in enumerate(rows)) <= width:
            break
    lines: list[str] = []
    for index, block in enumerate(rows):
        tall = len(block.lines) > 1 or (index and len(rows[index - 1].lines) > 1)
        lines += [""] if index and tall else []
        lines += [(INDENT * bool(index) + line).rstrip() for line in block.lines]
    return lines


def break_lines(expression: Expression, width: int, limit: int) -> list[list[Expression]]:
    """The lines of a formula, each a list of its parts. Matrices show `limit` columns.

    Lines break before relations if that suffices, else before any operator.
    """
    items = items_of(expression)
    if _joined(items, limit).width <= width:
        return [items]
    by_relation = _filled(items, RELATIONS, width, limit)
    if all(_joined(line, limit).width <= width - len(INDENT) for line in by_relation):
        return by_relation
    return [part for line in by_relation for part in _filled(line, RELATIONS | set("+−-·"), width, limit)]


def items_of(expression: Expression) -> list[Expression]:
    return list(expression.items) if isinstance(expression, MathRow) else [expression]


def _filled(items: list[Expression], signs: frozenset[str], width: int, limit: int) -> list[list[Expression]]:
    lines: list[list[Expression]] = [[]]
    for segment in segments(items, signs):
        if lines[-1] and _joined([*lines[-1], *segment], limit).width > width - len(INDENT):
            lines.append([])
        lines[-1] += segment
    return lines


def segments(items: list[Expression], signs: frozenset[str]) -> Iterator[list[Expression]]:
    """A = B = C as [A], [= B], [= C]."""
    segment: list[Expression] = []
    for item in items:
        if isinstance(item, Operator) and item.sign in signs and segment:
            yield segment
            segment = []
        segment.append(item)
    yield segment


def _joined(items: Sequence[Expression], limit: int) -> TextBlock:
    spaced: list[TextBlock] = []
    for item in items:
        is_comma = isinstance(item, Operator) and item.sign in (",", ";")
        spaced += [_block(item, limit)] if is_comma or not spaced else [one_line(" "), _block(item, limit)]
    return side_by_side(spaced)


def _block(expression: Expression, limit: int) -> TextBlock:
    return BLOCKS[type(expression)](expression, limit)


def _matrix(matrix: Matrix, limit: int) -> TextBlock:
    cells = shortened([shortened(line, limit) for line in format_matrix(matrix)], MAX_ROWS)
    return _bracketed(cells, shortened(matrix.row_labels, MAX_ROWS), pad_left)


def _symbol_matrix(matrix: SymbolMatrix, limit: int) -> TextBlock:
    return _bracketed(
        [[_flat(cell, limit) for cell in line] for line in matrix.table],
        list(matrix.row_labels),
        lambda cell, width: center(cell, width) if cell in DOTS else pad_left(cell, width),
    )


def _flat(expression: Expression, limit: int) -> str:
    return " ".join(line.strip() for line in _block(expression, limit).lines)


def _bracketed(cells: list[list[str]], labels: list[str], align: Callable[[str, int], str]) -> TextBlock:
    """A matrix of cells, aligned in their columns, with labels on its left."""
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    lines = tuple("  ".join(align(cell, width) for cell, width in zip(line, widths, strict=True)) for line in cells)
    middle = (len(lines) - 1) // 2
    block = enclose("[", TextBlock(lines, middle), "]")
    if not labels:
        return block
    widest = max(map(cell_len, labels))
    return side_by_side([TextBlock(tuple(pad_left(label, widest) + " " for label in labels), middle), block])


def _script(script: Script, limit: int) -> TextBlock:
    base = _block(script.base, limit)
    marks = _mark(script.below, BELOW, "_", limit) + _mark(script.above, ABOVE, "^", limit)
    if len(base.lines) == 1:
        return one_line(base.lines[0] + marks)
    return side_by_side([base, TextBlock((marks,), len(base.lines) - 1 if script.below else base.baseline)])


def _mark(small: Expression | None, letters: Mapping[str, str], sign: str, limit: int) -> str:
    if small is None:
        return ""
    text = "".join(_block(small, limit).lines)
    if all(letter in letters for letter in text):
        return "".join(letters[letter] for letter in text)
    return f"{sign}{text}" if text.isalnum() else f"{sign}({text})"


def _root(root: Root, limit: int) -> TextBlock:
    inside = _block(root.inside, limit)
    is_simple = isinstance(root.inside, Symbol | Number | Script) and len(inside.lines) == 1
    return side_by_side([one_line("√"), inside if is_simple else enclose("(", inside, ")")])


def _call(call: Call, limit: int) -> TextBlock:
    return side_by_side([one_line(call.name), enclose("(", _block(call.inside, limit), ")")])


def one_line(text: str) -> TextBlock:
    return TextBlock((text,))


def pad_left(text: str, width: int) -> str:
    """A text preceded by spaces, up to a width in terminal columns."""
    return " " * (width - cell_len(text)) + text


def center(text: str, width: int) -> str:
    """A text with spaces on both sides, up to a width in terminal columns."""
    missing = width - cell_len(text)
    return " " * (missing // 2) + text + " " * (missing - missing // 2)


def side_by_side(blocks: Sequence[TextBlock]) -> TextBlock:
    """Blocks side by side, with aligned baselines."""
    above = max(block.baseline for block in blocks)
    below = max(len(block.lines) - block.baseline for block in blocks)
    columns = []
    for block in blocks:
        empty = " " * block.width
        head = [empty] * (above - block.baseline)
        tail = [empty] * (below - (len(block.lines) - block.baseline))
        columns.append([*head, *block.lines, *tail])
    return TextBlock(tuple("".join(parts) for parts in zip(*columns, strict=True)), above)


def over(top: TextBlock, bottom: TextBlock) -> TextBlock:
    """A fraction; its bar is the baseline."""
    width = max(top.width, bottom.width)
    lines = [center(line, width) for line in top.lines], [center(line, width) for line in bottom.lines]
    return TextBlock((*lines[0], "─" * width, *lines[1]), len(top.lines))


def bracket(sign: str, inside: TextBlock) -> TextBlock:
    single, top, middle, bottom = BRACKETS[sign]
    height = len(inside.lines)
    if height == 1:
        return one_line(single)
    return TextBlock((top, *[middle] * (height - 2), bottom), inside.baseline)


def enclose(left: str, inside: TextBlock, right: str) -> TextBlock:
    return side_by_side([bracket(left, inside), inside, bracket(right, inside)])


BLOCKS: dict[type, Callable[..., TextBlock]] = {
    Symbol: lambda symbol, limit: one_line(symbol.name),
    Operator: lambda operator, limit: one_line(operator.sign),
    Number: lambda number, limit: one_line(format_number(number.value, number.digits)),
    Matrix: _matrix,
    SymbolMatrix: _symbol_matrix,
    MathRow: lambda row, limit: _joined(row.items, limit),
    Fraction: lambda fraction, limit: over(_block(fraction.top, limit), _block(fraction.bottom, limit)),
    Root: _root,
    Script: _script,
    Call: _call,
}


def _section(section: DocumentSection, width: int, rule: str) -> list[str]:
    lines = [section.title, rule * min(width, cell_len(section.title))] if section.title else []
    for index, part in enumerate(section.parts):
        lines += ([""] if index or section.title else []) + PARTS[type(part)](part, width)
    return lines


def _paragraph(paragraph: Paragraph, width: int) -> list[str]:
    return textwrap.wrap(paragraph.text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _formula(formula: Formula, width: int) -> list[str]:
    lines = [f"{INDENT}{line}".rstrip() for line in expression_lines(formula.expression, width - len(INDENT))]
    return [*_paragraph(Paragraph(formula.note), width), *lines] if formula.note else lines


def _table(table: Table, width: int) -> list[str]:
    numeric = numeric_columns(table)
    lines = [list(table.header), *map(list, table.rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    excess, gap = sum(widths) + 2 * (len(widths) - 1) - width, "  "
    if 0 < excess < len(widths):  # move columns closer rather than cut words
        gap = " "
    elif excess > 0:  # shorten the widest column of words
        widest = max(range(len(widths)), key=lambda column: (not numeric[column], widths[column]))
        widths[widest] = max(4, widths[widest] - excess)
    aligned = [
        gap.join(
            (pad_left if right else set_cell_size)(_cut(cell, size), size)
            for cell, size, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    ]
    return [aligned[0], gap.join("─" * size for size in widths), *aligned[1:]] if any(table.header) else aligned[1:]


def _cut(cell: str, width: int) -> str:
    return cell if cell_len(cell) <= width else set_cell_size(cell, width - 1).rstrip() + ELIDED


def _heat_map(heat_map: HeatMap, width: int) -> list[str]:
    labels = [_cut(label, 16) for label in heat_map.row_labels]
    margin = max(map(cell_len, labels), default=0)
    shown = min(len(heat_map.column_labels), (width - margin - 3) // 2)
    lines = [heat_map.caption] if heat_map.caption else []
    for label, values in zip(labels, heat_map.values, strict=True):
        cells = "".join(SHADES[round(float(min(max(value, 0), 1)) * (len(SHADES) - 1))] * 2 for value in values[:shown])
        lines.append(f"{pad_left(label, margin)} ▏{cells}▕")
    left_out = len(heat_map.column_labels) - shown
    return [*lines, f"({left_out} more columns do not fit here)"] if left_out else lines


PARTS: dict[type, Callable[..., list[str]]] = {
    Paragraph: _paragraph,
    Formula: _formula,
    Table: _table,
    HeatMap: _heat_map,
    DocumentSection: lambda section, width: _section(section, width, "─"),
}


def printable(text: str) -> str:
    """One line without control characters, which HTML and pictures cannot show."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def shorten(text: str, length: int, *, from_end: bool = False) -> str:
    """Text on one line, cut to a length; each run of spaces, tabs and control characters becomes one space."""
    line = "".join(character if character.isprintable() else " " for character in text.replace("\n", "⏎"))
    line = re.sub(" +", " ", line)
    if len(line) <= length:
        return line
    return "…" + line[-length:] if from_end else line[:length] + "…"

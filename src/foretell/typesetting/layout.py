"""Two-dimensional layout of characters: blocks of lines, combined side by side or one over the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len


@dataclass(frozen=True)
class TextBlock:
    """Lines of equal width. `baseline` is the line that aligns with the blocks on either side."""

    lines: tuple[str, ...]
    baseline: int = 0

    @property
    def width(self) -> int:
        """Width in terminal columns."""
        return cell_len(self.lines[0])


def one_line(text: str) -> TextBlock:
    """A block of one line."""
    return TextBlock((text,))


def pad(text: str, width: int) -> str:
    """A text followed by spaces, up to a width in terminal columns."""
    return text + " " * (width - cell_len(text))


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
    """A fraction, whose bar is the baseline."""
    width = max(top.width, bottom.width)
    lines = [center(line, width) for line in top.lines], [center(line, width) for line in bottom.lines]
    return TextBlock((*lines[0], "─" * width, *lines[1]), len(top.lines))


BRACKETS = {  # a one-line bracket, then the top, middle and bottom of a tall one
    "[": ("[", "⎡", "⎢", "⎣"),
    "]": ("]", "⎤", "⎥", "⎦"),
    "(": ("(", "⎛", "⎜", "⎝"),
    ")": (")", "⎞", "⎟", "⎠"),
}


def bracket(sign: str, inside: TextBlock) -> TextBlock:
    """A bracket as tall as the block inside."""
    single, top, middle, bottom = BRACKETS[sign]
    height = len(inside.lines)
    if height == 1:
        return one_line(single)
    return TextBlock((top, *[middle] * (height - 2), bottom), inside.baseline)


def enclose(left: str, inside: TextBlock, right: str) -> TextBlock:
    """A block in brackets."""
    return side_by_side([bracket(left, inside), inside, bracket(right, inside)])

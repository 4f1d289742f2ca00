"""Blocks of characters that are put side_by_side and above each other, each with the line that the eye follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len


@dataclass(frozen=True)
class TextBlock:
    """Lines of equal width; `baseline` is the one that stands level with what is side_by_side it."""

    lines: tuple[str, ...]
    baseline: int = 0

    @property
    def width(self) -> int:
        return cell_len(self.lines[0])


def one_line(text: str) -> TextBlock:
    """A block of one line."""
    return TextBlock((text,))


def pad(text: str, width: int) -> str:
    """A text with spaces after it, up to a width in columns of the screen."""
    return text + " " * (width - cell_len(text))


def pad_left(text: str, width: int) -> str:
    """A text with spaces before it."""
    return " " * (width - cell_len(text)) + text


def center(text: str, width: int) -> str:
    """A text with spaces on both sides."""
    missing = width - cell_len(text)
    return " " * (missing // 2) + text + " " * (missing - missing // 2)


def side_by_side(blocks: Sequence[TextBlock]) -> TextBlock:
    """Blocks side by side, baselines level."""
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
    """A fraction: the bar is the baseline."""
    width = max(top.width, bottom.width)
    lines = [center(line, width) for line in top.lines], [center(line, width) for line in bottom.lines]
    return TextBlock((*lines[0], "─" * width, *lines[1]), len(top.lines))


BRACKETS = {  # one line, then the top, the middle and the bottom of a tall one
    "[": ("[", "⎡", "⎢", "⎣"),
    "]": ("]", "⎤", "⎥", "⎦"),
    "(": ("(", "⎛", "⎜", "⎝"),
    ")": (")", "⎞", "⎟", "⎠"),
}


def bracket(sign: str, inside: TextBlock) -> TextBlock:
    """A bracket as tall as what it encloses."""
    single, top, middle, bottom = BRACKETS[sign]
    height = len(inside.lines)
    if height == 1:
        return one_line(single)
    return TextBlock((top, *[middle] * (height - 2), bottom), inside.baseline)


def enclose(left: str, inside: TextBlock, right: str) -> TextBlock:
    """A block in brackets."""
    return side_by_side([bracket(left, inside), inside, bracket(right, inside)])

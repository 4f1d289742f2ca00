"""Effects of the parts of an input, such as words, on a number that a model computes: its decrease without them.

A word is removed by removing its tokens. The effects of leaving out words one at a time do not add up, because a word
can make another one redundant or necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.typesetting.document import Table, bar, quoted
from foretell.typesetting.numbers import signed

Numbers = NDArray[np.float64]
Masks = NDArray[np.bool_]  # (N, P): True for the parts that are left in each of N inputs
ValueFunction = Callable[[Masks], NDArray[np.floating[Any]]]  # (N,)

SHOWN = 64


def leave_out(value: ValueFunction, count: int) -> tuple[float, list[float]]:
    """The number of the whole input, and the number without each of its `count` parts."""
    masks = np.concatenate([np.ones((1, count), bool), ~np.eye(count, dtype=bool)])
    full, *without = np.asarray(value(masks), np.float64).tolist()
    return full, without


@dataclass(frozen=True)
class WordRow:
    """A row in a table of words: the text, its effect, and further cells by column."""

    text: str
    effect: float
    more: dict[str, str]


def word_table(rows: Sequence[WordRow], longest: float, unit: str) -> Table:
    """The rows with bars relative to the effect `longest`."""
    return Table(
        ("effect", "", *(rows[0].more if rows else {}), unit),
        [
            (
                signed(row.effect),
                bar(row.effect / longest if longest else 0),
                *row.more.values(),
                quoted(row.text.strip() or row.text),
            )
            for row in rows
        ],
    )


def largest_in_order(rows: Sequence[WordRow]) -> list[WordRow]:
    """The rows with the largest effects, at most SHOWN, in the order of the text."""
    if len(rows) <= SHOWN:
        return list(rows)
    order = sorted(range(len(rows)), key=lambda index: -abs(rows[index].effect))[:SHOWN]
    return [rows[index] for index in sorted(order)]

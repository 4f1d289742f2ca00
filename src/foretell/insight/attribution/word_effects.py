"""Effects of the words of an input on a number that a model computes: its decrease without them.

A word is removed by removing its tokens. The effects of leaving out words one at a time do not add up, because a word
can make another one redundant or necessary. Shapley values (shapley.py) add up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from foretell.errors import UsageError
from foretell.insight.attribution.shapley import ValueFunction, WordEffects, most_players, shapley_values
from foretell.text.words import Word, spans_of
from foretell.typesetting.document import Paragraph, Part, Table, bar, quoted, signed

PASSES = 1000  # for Shapley values; a text of 36 words, 66 tokens, takes about two seconds with primer's size
FEWEST_PAIRS = 8  # pairs of random orders for meaningful standard errors; longer texts are divided into spans
SHOWN = 64


def word_effects(
    value: ValueFunction, count: int, passes: int | None = None, seed: int = 0, unit: str = "word"
) -> WordEffects:
    """The effects of `count` words: Shapley values from at most `passes` passes, or (None) by leaving out each word.

    unit: the name of a word in errors, such as `span`.
    """
    if passes is None:
        masks = np.concatenate([np.ones((1, count), bool), ~np.eye(count, dtype=bool)])
        full, *without = np.asarray(value(masks), np.float64).tolist()
        return WordEffects([full - each for each in without], [0.0] * count, full, None, len(masks), None)
    return shapley_values(value, count, passes, seed, unit)


def joined_to_fit(texts: Sequence[list[Word]], used: Collection[int], passes: int | None) -> list[list[Word]]:
    """The words of texts, joined to the shortest spans for which the passes are enough for Shapley values.

    used: the indices of texts with an effect. Raises UsageError if the passes are too few even with one span per text.
    """
    if passes is None:
        return list(texts)
    most = most_players(passes, FEWEST_PAIRS)
    for length in range(1, max(map(len, texts)) + 1):
        joined = [spans_of(words, length) for words in texts]
        if sum(len(joined[index]) for index in used) <= most:
            return joined
    raise UsageError(f"--passes {passes} is too few for Shapley values; give at least {2 ** len(used)}")


@dataclass(frozen=True)
class WordRow:
    """A row in a table of words: the text, its effect and standard error, and further cells by column."""

    text: str
    effect: float
    error: float
    more: dict[str, str]


def word_table(rows: Sequence[WordRow], longest: float, unit: str) -> Table:
    """The rows with bars relative to the effect `longest`; with a column of errors if any is not zero."""
    has_errors = any(row.error for row in rows)
    return Table(
        ("effect", *(["error"] if has_errors else []), "", *(rows[0].more if rows else {}), unit),
        [
            (
                signed(row.effect),
                *([f"{row.error:.4f}"] if has_errors else []),
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


def sum_parts(effects: WordEffects, unit: str) -> list[Part]:
    """The equation that Shapley values satisfy, and their method; empty for words left out one at a time."""
    if effects.empty is None:
        return []
    how = (
        f"exact, from all {effects.passes:,} subsets of the {unit}s"
        if effects.permutations == 0
        else f"from {effects.permutations:,} random orders, {effects.passes:,} passes; error: the standard error"
    )
    rows = [
        (signed(effects.empty), f"without any {unit}"),
        (signed(sum(effects.values)), "the effects, added"),
        (signed(effects.full), f"with every {unit}"),
    ]
    return [Table(("", ""), rows), Paragraph(f"effect: Shapley value, {how}.")]

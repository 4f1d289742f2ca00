"""Induction heads in a model that is trained when the lesson is made, and the effect of switching them off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch

from foretell.insight.replacement import Replacement, without_heads
from foretell.insight.trace import Trace
from foretell.lessons.exercise import Exercise
from foretell.lessons.lesson import FigureCheck, above, below, same
from foretell.lessons.trained import TrainedLesson

CONTEXT, LEAST_LETTERS, MOST_LETTERS = 48, 4, 12
JUMP = 0.2  # the share of letters that break the order
TEXT, NEXT = "gkptwgkptkptwgk", "ptwg"
CORES = ("trunk.blocks.0.attention.core", "trunk.blocks.1.attention.core")
LEAST_RIGHT, LEAST_ATTENTION, MOST_BY_CHANCE, MOST_WITHOUT = 0.85, 0.7, 0.3, 0.5


@dataclass(frozen=True)
class InductionTest:
    """Measurements on new rows, at letters whose successor the text has shown. right: the share of correct predictions.

    previous: for each head of layer 0, the mean weight on the letter before. following: for each head of layer 1, the
    mean weight on letters that followed an earlier occurrence of the same letter; by_chance: the share of such letters.
    without: the share of correct predictions with parts switched off.
    """

    right: float
    previous: list[float]
    following: list[float]
    by_chance: float
    without: dict[str, float]


class InductionLesson(TrainedLesson):
    """Two layers with two heads learn to continue what the text has shown."""

    name = "induction"
    letters = ascii_lowercase
    shape = {  # noqa: RUF012
        "num_layers": 2, "num_heads": 2, "width": 64, "feedforward": "none", "context_length": CONTEXT,
    }  # fmt: skip
    steps = 1500

    def rows(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Each row follows a random circle of a few letters, except for its jumps.

        Targets: letters after a letter whose successor the row has shown before.
        """
        letters = rng.permuted(np.tile(np.arange(len(self.letters)), (count, 1)), axis=1)
        size, every = rng.integers(LEAST_LETTERS, MOST_LETTERS + 1, count), np.arange(count)
        places = np.zeros((count, CONTEXT + 1), int)  # positions in the circle
        targets, is_known = np.zeros(places.shape), np.zeros((count, MOST_LETTERS), bool)
        for index in range(1, CONTEXT + 1):
            before, is_jump = places[:, index - 1], rng.random(count) < JUMP
            places[:, index] = np.where(is_jump, rng.integers(0, size), (before + 1) % size)
            targets[:, index] = is_known[every, before] & ~is_jump
            is_known[every, before] |= ~is_jump
        return np.take_along_axis(letters, places, 1), targets

    def shown(self) -> dict[str, Any]:
        test = self.test
        return {
            **self.trained(),
            "right": f"{100 * test.right:.1f}",
            "text": TEXT,
            "answer": self.answer(TEXT, len(NEXT)),
            "head": self.head,
            "following": f"{test.following[self.head]:.2f}",
            "by_chance": f"{test.by_chance:.2f}",
            "first_head": self.first_head,
            "previous": f"{test.previous[self.first_head]:.2f}",
            "without": [[name, f"{100 * share:.1f}"] for name, share in test.without.items()],
        }

    def checks(self) -> list[FigureCheck]:
        test = self.test
        alone, layer, previous = test.without.values()
        return [
            above("the first loss", 2.5, self.losses[0]),
            below("the last loss", 0.5, self.losses[-1]),
            above("share of letters right", LEAST_RIGHT, test.right),
            above("mean weight on letters that followed the same letter", LEAST_ATTENTION, test.following[self.head]),
            below("share of such letters", MOST_BY_CHANCE, test.by_chance),
            above("loss of accuracy without this head", 0.02, test.right - alone),
            below("share of letters right without the heads of layer 1", MOST_WITHOUT, layer),
            below("share of letters right without the head for the letter before", MOST_WITHOUT, previous),
            same("the text goes on", NEXT, self.answer(TEXT, len(NEXT))),
        ]

    def solutions(self) -> list[Exercise]:
        asked, test = "wtpkgwtpkgwt", self.test
        *_, without = test.without.values()
        following = test.following[self.head]
        return [
            Exercise(
                asked[asked.index(asked[-1]) + 1], f"what followed the earlier {asked[-1]}", f"{CORES[1]}.weights"
            ),
            Exercise(100 * (test.right - without), f"{100 * test.right:.1f} - {100 * without:.1f}", "section 5", 0.2),
            Exercise(following / test.by_chance, f"{following:.2f} / {test.by_chance:.2f}", "section 4", 0.5),
        ]

    @property
    def head(self) -> int:
        """The head of layer 1 that attends most to letters that followed the same letter."""
        return int(np.argmax(self.test.following))

    @property
    def first_head(self) -> int:
        """The head of layer 0 that attends most to the letter before."""
        return int(np.argmax(self.test.previous))

    def examples(self) -> list[dict[str, Any]]:
        return [
            {
                "title": "An induction head: what followed this letter before?",
                "text": TEXT,
                "layer": 1,
                "head": self.head,
            },
            {"title": "The head that reads the letter before", "text": TEXT, "layer": 0, "head": self.first_head},
            {"title": "Another order of the letters", "text": "wtpkgwtpkgwt", "layer": 1, "head": self.head},
        ]

    @cached_property
    @torch.inference_mode()
    def test(self) -> InductionTest:
        known, targets = self.test_rows()
        ids, following_ids, asked = known[:, :-1], known[:, 1:], targets[:, 1:]
        names = [f"{core}.weights" for core in CORES]

        def share_right(replace: Mapping[str, Replacement] | None = None) -> float:
            """The share of letters that are predicted right, with some values replaced."""
            with Trace(self.decoder, replace=replace):
                return float((self.decoder(ids).argmax(-1) == following_ids)[asked].float().mean())

        with Trace(self.decoder, names) as trace:
            right = share_right()
        first, second = (trace[name].transpose(0, 1)[:, asked] for name in names)  # (H, asked, T)
        T = torch.arange(CONTEXT)
        followed = (ids[:, :, None] == ids.roll(1, 1)[:, None]) & (T[:, None] >= T) & (T > 0)  # (rows, T, T)
        is_before = (T[:, None] == T + 1).expand(len(ids), -1, -1)
        previous, following = (
            (weights * wanted[asked]).sum(-1).mean(-1).tolist()
            for weights, wanted in ((first, is_before), (second, followed))
        )
        by_chance = (followed.sum(-1) / (T + 1))[asked].mean()
        head, first_head = int(np.argmax(following)), int(np.argmax(previous))
        parts = {
            f"head {head} of layer 1": {CORES[1]: without_heads(head)},
            "both heads of layer 1": {CORES[1]: without_heads(0, 1)},
            f"head {first_head} of layer 0": {CORES[0]: without_heads(first_head)},
        }
        without = {name: share_right(replace) for name, replace in parts.items()}
        return InductionTest(right, previous, following, float(by_chance), without)

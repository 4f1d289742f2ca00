"""A sorter that is trained when the lesson is made: six digits in, the same digits in order out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from foretell.insight.trace import Trace
from foretell.lessons.exercise import Exercise
from foretell.lessons.lesson import FigureCheck, above, below, same
from foretell.lessons.trained import ROWS, TrainedLesson

DIGITS, SIGN = "0123456789", "="
LENGTH = 6  # digits
TEXT = "314159="
WEIGHTS = "trunk.blocks.0.attention.core.weights"
LEAST_SORTED, LEAST_ATTENTION, MOST_BY_CHANCE = 0.95, 0.4, 0.3


@dataclass(frozen=True)
class SortTest:
    """Measurements on new rows: the shares of correct digits and rows, and attention while digits are written.

    wanted: for each head, the mean weight on the input's digits that equal the digit to write; by_chance: the
    share of such digits in the input.
    """

    digits: float
    rows: float
    wanted: list[float]
    by_chance: float


class SortLesson(TrainedLesson):
    """One layer with two heads learns to sort."""

    name = "sort"
    letters = DIGITS + SIGN
    shape = {"num_layers": 1, "num_heads": 2, "width": 48, "context_length": 2 * LENGTH}  # noqa: RUF012
    steps = 900

    def rows(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Digits, the sign, and the sorted digits, which are the targets."""
        digits = rng.integers(0, len(DIGITS), (count, LENGTH))
        rows = np.concatenate([digits, np.full((count, 1), len(DIGITS)), np.sort(digits, 1)], 1)
        return rows, (np.arange(rows.shape[1]) > LENGTH) * np.ones(rows.shape)

    def shown(self) -> dict[str, Any]:
        return {
            **self.trained(),
            "digits_right": f"{100 * self.test.digits:.1f}",
            "rows_right": f"{100 * self.test.rows:.1f}",
            "wanted": f"{self.test.wanted[self.head]:.2f}",
            "head": self.head,
            "by_chance": f"{self.test.by_chance:.2f}",
            "answer": self.answer(TEXT, LENGTH),
        }

    def checks(self) -> list[FigureCheck]:
        return [
            above("the first loss", 1.5, self.losses[0]),
            below("the last loss", 0.1, self.losses[-1]),
            above("share of rows sorted", LEAST_SORTED, self.test.rows),
            above("share of digits right", LEAST_SORTED, self.test.digits),
            above("mean weight on digits equal to the next one", LEAST_ATTENTION, self.test.wanted[self.head]),
            below("share of such digits", MOST_BY_CHANCE, self.test.by_chance),
            same("the sorted text", "".join(sorted(TEXT.removesuffix(SIGN))), self.answer(TEXT, LENGTH)),
        ]

    def solutions(self) -> list[Exercise]:
        asked = "271828"
        return [
            Exercise("".join(sorted(asked)), f"the digits of {asked} in order", "section 1"),
            Exercise(math.exp(-self.losses[0]), f"exp(-{self.losses[0]:.4f})", "section 2", 0.005),
            Exercise(self.steps * ROWS, f"{self.steps} · {ROWS}", "section 2"),
        ]

    @property
    def head(self) -> int:
        """The head that attends most to digits equal to the next one."""
        return int(np.argmax(self.test.wanted))

    def examples(self) -> list[dict[str, Any]]:
        titles = {
            "Six digits, and half of them in order": f"{TEXT}113",
            "The first digit to write": TEXT,
            "A wrong digit": f"{TEXT}119",
        }
        return [{"title": title, "text": text, "layer": 0, "head": self.head} for title, text in titles.items()]

    @cached_property
    @torch.inference_mode()
    def test(self) -> SortTest:
        known, _ = self.test_rows()
        with Trace(self.decoder, WEIGHTS) as trace:
            right = self.decoder(known[:, :-1])[:, LENGTH:].argmax(-1) == known[:, LENGTH + 1 :]
        wanted = (known[:, None, :LENGTH] == known[:, LENGTH + 1 :, None]).float()  # (rows, written, given)
        means = (trace[WEIGHTS][:, :, LENGTH:, :LENGTH] * wanted[:, None]).sum(-1).mean((0, 2))  # (H,)
        digits, whole = (float(share.float().mean()) for share in (right, right.all(-1)))
        return SortTest(digits, whole, means.tolist(), float(wanted.mean()))

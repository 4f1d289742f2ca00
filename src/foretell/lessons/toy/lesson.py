"""The lesson on the toy: its training shown, and what must hold for it checked."""

from __future__ import annotations

from dataclasses import astuple

from foretell.lessons.check import Check, below, near, same
from foretell.lessons.lesson import Lesson
from foretell.lessons.toy import printed
from foretell.lessons.toy.page import make_page
from foretell.lessons.toy.run import WATCHED_STEPS, Run, adam_by_hand, answer_ids, run_toy
from foretell.lessons.toy.values import position_vectors, position_vectors_by_textbook
from foretell.typesetting.document import DocumentSection

SEED = 1
GRADIENT_BOUND = 1e-6  # float32's gradient and float64's slopes, both near 0.1; measured: 6e-8 at most over 20 seeds
ADAM_BOUND = 1e-6  # the optimizer counts in float32


class Toy(Lesson):
    """Two prompts, one answer."""

    def __init__(self, seed: int | None = None):
        self.seed = SEED if seed is None else seed
        self.run = run_toy(self.seed)

    def document(self) -> DocumentSection:
        return make_page(self.run, self.seed)

    def checks(self) -> list[Check]:
        return [*check_positions(), *check_first_steps(self.run), *check_outcome(self.run)]


def check_positions() -> list[Check]:
    """Sines and cosines."""
    count = printed.CONTEXT
    return [
        near("position 0", printed.FIRST_POSITION, position_vectors(1)[0], 1e-12),
        near(
            "positions: the textbook's and the model's",
            position_vectors_by_textbook(count),
            position_vectors(count),
            1e-12,
        ),
    ]


def check_first_steps(run: Run) -> list[Check]:
    """Backpropagation against finite differences, the optimizer against Adam's definition."""
    by_hand = adam_by_hand([step.gradient for step in run.steps], run.steps[0].before)
    expected, got = [astuple(step) for step in by_hand], [astuple(step) for step in run.steps]
    return [
        near("gradient and finite differences", run.slopes.numpy(), run.gradient.numpy(), GRADIENT_BOUND),
        same("steps of Adam that were watched", WATCHED_STEPS, len(run.steps)),
        near("steps of Adam by hand and by the optimizer", expected, got, ADAM_BOUND),
    ]


def check_outcome(run: Run) -> list[Check]:
    """The loss is small, and both prompts have their answer."""
    return [
        below("loss at the end", printed.LIMIT, run.epochs[-1]),
        *(
            check
            for prompt, answer in zip(printed.PROMPTS, run.answers, strict=True)
            for check in (
                same(f"answer to: {prompt}", answer_ids(), answer.generated),
                same(f"stops by itself after: {prompt}", "end", answer.finish_reason),
            )
        ),
    ]

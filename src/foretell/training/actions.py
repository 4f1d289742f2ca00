"""What happens beside the training itself, every so many steps: logging, evaluation, samples, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Progress:
    """Where training stands, after `step` optimizer steps. Losses are in nats a token."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of training, evaluation and samples not counted
    loss: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None  # of the evaluations that were due
    evaluations_since_best: int = 0


@dataclass(frozen=True)
class Action:
    """Something to do every `every` steps and after the last one."""

    every: int
    run: Callable[[Progress], None]

    def is_due(self, step: int, last: int) -> bool:
        """Is it this step's turn?"""
        return step % self.every == 0 or step == last

"""The training loop, the actions that run between its steps, and early stopping."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from foretell.config import TrainingConfig
from foretell.distributed.world import ALONE, World
from foretell.training.execution import eagerly
from foretell.training.optimizer import set_learning_rate
from foretell.training.pace import FixedSteps, Pace
from foretell.training.step import StepResult, TrainingBatch, own_rows, training_step

MOST_UNREAD = 100  # steps that the device may be behind the host


@dataclass
class Progress:
    """The state of training after `step` optimizer steps. Losses are in nats per target; saved in every checkpoint."""

    step: int = 0
    share: float = 0.0  # of the training that is done
    tokens: int = 0  # read by the model in training, without padding
    seconds: float = 0.0  # of training alone, without evaluation and samples
    loss: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None  # of the evaluations that were due
    evaluations_since_best: int = 0


@dataclass
class Action:
    """Something to do every `every` steps and after the last one.

    closing: the time that is needed after the last step, for this action and what follows, in multiples of `seconds`;
    it may change from time to time.
    """

    every: int
    run: Callable[[Progress], None]
    closing: Callable[[], float] = lambda: 1.0
    seconds: float = 0.0  # of the last time

    def is_due(self, step: int) -> bool:
        return step % self.every == 0

    def do(self, progress: Progress) -> None:
        started = time.perf_counter()
        self.run(progress)
        self.seconds = time.perf_counter() - started

    @property
    def closing_seconds(self) -> float:
        return self.seconds * self.closing()


class BatchSource(Protocol):
    """Anything that returns the batch of a step: a `Loader`, a `Task`."""

    def batch(self, step: int) -> TrainingBatch: ...


def train(
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: BatchSource,
    config: TrainingConfig,
    progress: Progress,
    actions: list[Action],
    *,
    pace: Pace | None = None,
    dtype: torch.dtype = torch.float32,
    world: World = ALONE,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Take optimizer steps from `progress.step` to the last, or until `should_stop`; `progress` is kept up to date.

    The pace decides which step is the last, by default the number in `config`. `objective` maps a batch to its `Loss`.
    Step n uses batch n, learning rate n and dropout masks n, so training can continue from any step. The loss and the
    gradient's norm are read when an action is due. Each of several processes trains on its rows of the batch, and all
    stop after the same step, as soon as one of them should stop.
    """
    objective.train()
    pace = pace or FixedSteps(config)
    progress.share = pace.share(progress.step)
    unread: list[StepResult] = []
    while progress.share < 1 and not world.any(should_stop()):
        started = time.perf_counter()
        learning_rate = pace.learning_rate(progress.step, progress.share)
        set_learning_rate(optimizer, learning_rate)
        batch = own_rows(source.batch(progress.step), world)
        result = training_step(objective, optimizer, batch, progress.step, config, dtype, world)
        unread.append(result)

        progress.step += 1
        progress.tokens += result.tokens
        progress.learning_rate = learning_rate
        due = [action for action in actions if action.is_due(progress.step)]
        if due or len(unread) == MOST_UNREAD:
            read(unread, progress)
        pending = sum(action.seconds for action in due)
        progress.share = pace.share(progress.step, pending, sum(action.closing_seconds for action in actions))
        if progress.share >= 1:
            due = actions
            read(unread, progress)
        progress.seconds += time.perf_counter() - started
        with eagerly():
            for action in due:
                action.do(progress)
    read(unread, progress)


def read(unread: list[StepResult], progress: Progress) -> None:
    """Wait for the device and update the loss; a `DivergedError` if the loss of any step is not finite."""
    for result in unread:
        progress.loss, progress.gradient_norm = result.loss, result.gradient_norm
    unread.clear()


def record_evaluation(progress: Progress) -> bool:
    """Count an evaluation that was due; True if its loss is the best so far."""
    loss, best = progress.validation_loss, progress.best_validation_loss
    if loss is None:
        return False
    is_best = best is None or loss < best
    if is_best:
        progress.best_validation_loss = loss
    progress.evaluations_since_best = 0 if is_best else progress.evaluations_since_best + 1
    return is_best


def is_out_of_patience(progress: Progress, config: TrainingConfig) -> bool:
    """True after `patience` evaluations without improvement (early stopping, Prechelt 1998)."""
    return config.patience is not None and progress.evaluations_since_best >= config.patience

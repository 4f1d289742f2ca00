"""The training loop, the actions between its steps, and early stopping."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from foretell.config.training import TrainingConfig
from foretell.distributed.world import ALONE, World
from foretell.system.device import eagerly
from foretell.training.optimizer import set_learning_rate
from foretell.training.pace import FixedSteps, Pace
from foretell.training.step import StepResult, TrainingBatch, own_rows, training_step

MOST_UNREAD = 100  # steps that the device may lag behind the host


@dataclass
class Progress:
    """The state of training after `step` optimizer steps. Losses are in nats per target; saved in every checkpoint."""

    step: int = 0
    share: float = 0.0  # share of the training that is done
    tokens: int = 0  # tokens read in training, without padding
    seconds: float = 0.0  # time of the steps, without evaluation and samples
    loss: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None  # the best of the scheduled evaluations
    evaluations_since_best: int = 0


@dataclass
class Action:
    """Something to do every `every` steps and after the last one."""

    every: int
    run: Callable[[Progress], None]
    seconds: float = 0.0  # duration of the last call

    def do(self, progress: Progress) -> None:
        started = time.perf_counter()
        self.run(progress)
        self.seconds = time.perf_counter() - started


class BatchSource(Protocol):
    """Returns the batch of a step; a `Loader` or a `Task`."""

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
    """Take optimizer steps from `progress.step` to the last, or until `should_stop`, and update `progress`.

    The pace decides which step is the last; by default `config.steps`. `objective` maps a batch to its `Loss`. Step n
    uses batch n, learning rate n and dropout masks n, so training can continue from any step. The loss and the
    gradient's norm are read when an action is due. Each of several processes trains on its rows of the batch; all stop
    after the same step, as soon as any of them should stop.
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
        due = [action for action in actions if progress.step % action.every == 0]
        if due or len(unread) == MOST_UNREAD:
            read_results(unread, progress)
        pending, closing = (sum(action.seconds for action in some) for some in (due, actions))
        progress.share = pace.share(progress.step, pending, closing)
        if progress.share >= 1:
            due = actions
            read_results(unread, progress)
        progress.seconds += time.perf_counter() - started
        with eagerly():
            for action in due:
                action.do(progress)
    read_results(unread, progress)


def read_results(unread: list[StepResult], progress: Progress) -> None:
    """Wait for the device and update the loss. Raises DivergedError if the loss of any step is not finite."""
    for result in unread:
        progress.loss, progress.gradient_norm = result.loss, result.gradient_norm
    unread.clear()


def record_evaluation(progress: Progress) -> bool:
    """Record a scheduled evaluation; True if its loss is the best so far."""
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

"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from foretell.config import TrainingConfig
from foretell.data.batch import Batch
from foretell.training.actions import Action, Progress
from foretell.training.objective import Objective
from foretell.training.optimizer import set_learning_rate
from foretell.training.schedule import learning_rate_at
from foretell.training.step import training_step


class Batches(Protocol):
    """Where batches come from: a `Loader`, or anything else that knows the batch of a step."""

    def batch(self, step: int) -> Batch: ...


def train(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    loader: Batches,
    config: TrainingConfig,
    progress: Progress,
    actions: list[Action],
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Take optimizer steps until all are done or `should_stop` says so, from where `progress` stands; keep it true.

    Step n uses batch n, learning rate n and dropout masks n, so beginning at any step continues the same training.
    """
    objective.train()
    while progress.step < config.steps and not should_stop():
        started = time.perf_counter()
        batch = loader.batch(progress.step).to(device)
        learning_rate = learning_rate_at(progress.step, config)
        set_learning_rate(optimizer, learning_rate)
        result = training_step(objective, optimizer, batch, progress.step, config, dtype)
        seconds = time.perf_counter() - started

        progress.step += 1
        progress.tokens += result.count
        progress.seconds += seconds
        progress.loss, progress.gradient_norm = result.loss, result.gradient_norm
        progress.learning_rate = learning_rate
        for action in actions:
            if action.is_due(progress.step, config.steps):
                action.run(progress)

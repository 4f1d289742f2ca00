"""The measured time of training steps."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from foretell.config.training import TrainingConfig
from foretell.training.optimizer import make_optimizer
from foretell.training.step import TrainingBatch, training_step


def time_steps(
    objective: nn.Module,
    model: nn.Module,
    batch: Callable[[int], TrainingBatch],
    training: TrainingConfig,
    dtype: torch.dtype,
    duration: float,
    fewest: int = 1,
) -> list[float]:
    """The seconds of training steps, at least `fewest`, for `duration` seconds; this changes the model's weights."""
    # Globs may name layers that only the final model has; weight decay takes no time
    training = training.model_copy(update={"weight_decay_by_path": {}, "frozen": ()})
    optimizer = make_optimizer(model, training, dtype)
    _ = training_step(objective, optimizer, batch(0), 0, training, dtype).loss  # the first one warms up
    seconds: list[float] = []
    while sum(seconds) < duration or len(seconds) < fewest:
        started, step = time.perf_counter(), len(seconds) + 1
        _ = training_step(objective, optimizer, batch(step), step, training, dtype).loss  # reading waits for a GPU
        seconds.append(time.perf_counter() - started)
    return seconds

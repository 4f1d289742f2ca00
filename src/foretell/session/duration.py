"""How long to train: the number of steps for the time and the data, and the measured time of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from foretell.config import TrainingConfig
from foretell.planning.probe import time_steps
from foretell.training.optimizer import make_optimizer
from foretell.training.step import TrainingBatch

PROBE_SECONDS = 4.0
FEWEST_PROBED = 4  # rows of different steps have different lengths


def seconds_per_step(
    objective: nn.Module,
    model: nn.Module,
    batch: Callable[[int], TrainingBatch],
    training: TrainingConfig,
    dtype: torch.dtype,
) -> float:
    """The mean time of a training step on this machine, on real batches. The weights of the model are used up."""
    # Globs may name layers that only the model chosen later has; weight decay takes no time
    training = training.model_copy(update={"weight_decay_by_path": {}, "frozen": ()})
    optimizer = make_optimizer(model, training, dtype)
    seconds = time_steps(objective.train(), optimizer, batch, training, dtype, PROBE_SECONDS, FEWEST_PROBED)
    return sum(seconds) / len(seconds)


def choose_steps(
    minutes: float | None, default_minutes: float, seconds: float, speed: str, most: int | None = None, fewest: int = 1
) -> tuple[int, str]:
    """The steps of `seconds` each that fit the time, and the reason.

    Without `minutes`, the default applies, with at least `fewest` steps and at most `most`, after which a model would
    mostly memorise its data. speed: the measured speed in words.
    """
    by_time = int(60 * (minutes or default_minutes) / seconds)
    why = f"{minutes or default_minutes:g} minutes at {speed}"
    steps = by_time
    if minutes is None and most is not None and most < by_time:
        steps, why = most, "more would mostly memorise the data"
    least = 1 if minutes is not None else fewest
    if steps <= least:
        why += f", but no fewer than {least}"
    return max(least, steps), why

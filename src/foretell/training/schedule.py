"""Learning rate schedules: the rate of a step is a function of the step alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from foretell.config import TrainingConfig


def learning_rate_at(step: int, config: TrainingConfig) -> float:
    """Linear warm-up to the learning rate, then the configured schedule; `step` counts from 0."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)  # 0 to 1
    floor = config.final_learning_rate_share
    return config.learning_rate * (floor + (1 - floor) * SCHEDULES[config.schedule](min(progress, 1.0), config))


def cosine(progress: float, config: TrainingConfig) -> float:
    """Half a cosine wave from 1 to 0 (Loshchilov and Hutter 2017)."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float, config: TrainingConfig) -> float:
    """A straight line from 1 to 0."""
    return 1 - progress


def stable_decay(progress: float, config: TrainingConfig) -> float:
    """1, then a straight line to 0 over the last share of the steps (warm-up, stable, decay: Hu et al. 2024)."""
    return min(1.0, (1 - progress) / config.decay_fraction)


def constant(progress: float, config: TrainingConfig) -> float:
    """1 throughout."""
    return 1.0


SCHEDULES: dict[str, Callable[[float, TrainingConfig], float]] = {
    "cosine": cosine,
    "linear": linear,
    "stable_decay": stable_decay,
    "constant": constant,
}

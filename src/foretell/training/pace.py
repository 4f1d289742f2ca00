"""The pace of a training: the share that is done when a step begins, and the learning rate of the step.

A run with a number of steps counts them. A run with a time budget uses the share of the time that is spent when a step
begins, so its schedule ends in time on any machine, idle or busy. The measured shares are recorded. A resumed run
repeats its steps with the recorded shares, and measures the later ones.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import NamedTuple

from foretell.config.training import TrainingConfig
from foretell.distributed.world import ALONE, World
from foretell.errors import check_type, counted

logger = logging.getLogger(__name__)

MOST_CLOSING = 0.2  # the largest reserved share; an estimate is many times too high if an evaluation was disturbed
OVERTIME = 3  # a training with fewer than `fewest_steps` may last this multiple of its time


class Pace(ABC):
    """The progress of a training at a step, and the learning rate of the step."""

    def __init__(self, config: TrainingConfig):
        self.config = config
        if consequence := self.effect_of_long_warmup():
            logger.warning(
                f"warm-up     {counted(config.warmup_steps, 'step')} of a training of {config.steps:,}: {consequence}"
            )

    @abstractmethod
    def effect_of_long_warmup(self) -> str | None:
        """The effect of a warm-up that is too long for the training; None if it is not."""

    @abstractmethod
    def share(self, step: int, pending: float = 0.0, closing: float = 0.0) -> float:
        """The share of the training done before step `step`, counted from 0; 1 or more after the last step.

        pending: the expected seconds of actions before that step. closing: the expected seconds of actions after the
        last step.
        """

    @abstractmethod
    def learning_rate(self, step: int, share: float) -> float:
        """The learning rate of step `step`, which begins at `share`."""

    @abstractmethod
    def expected_steps(self, step: int, share: float) -> int:
        """The expected total number of steps, after `step` steps."""

    def seconds_left(self, step: int) -> float:
        """The unused seconds of a time budget if the training ends after `step` steps."""
        return 0.0


class FixedSteps(Pace):
    """A training of `config.steps` steps."""

    def effect_of_long_warmup(self) -> str | None:
        if self.config.warmup_steps <= self.config.steps:
            return None
        return f"the learning rate ends at {learning_rate_at(self.config.steps - 1, self.config):.3g}"

    def share(self, step: int, pending: float = 0.0, closing: float = 0.0) -> float:
        return step / self.config.steps

    def learning_rate(self, step: int, share: float) -> float:
        return learning_rate_at(step, self.config)

    def expected_steps(self, step: int, share: float) -> int:
        return self.config.steps


class Mark(NamedTuple):
    """The state of a time budget when a step begins: the share done, and the seconds spent."""

    share: float
    seconds: float


class TimeBudget(Pace):
    """A training of `seconds` of wall time from its first step, including the actions after its last step.

    A training that is slower than `fewest_steps` in this time goes on until it has them, or until OVERTIME times the
    seconds are spent. most_steps: a limit at which training and schedule end even if time is left. marks: the recorded
    steps of a resumed training. record: stores the mark of a step. `config.steps` is an estimate, which sets the length
    of the warm-up as a share of the training.
    """

    def __init__(
        self,
        config: TrainingConfig,
        seconds: float,
        *,
        marks: Mapping[int, Mark] | None = None,
        record: Callable[[int, Mark], None] = lambda step, mark: None,
        fewest_steps: int = 0,
        most_steps: int | None = None,
        world: World = ALONE,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(config)
        self.most_steps = math.inf if most_steps is None else most_steps
        self.fewest_steps = min(fewest_steps, self.most_steps)
        self.seconds, self.record, self.world, self.clock = seconds, record, world, clock
        self.marks = dict(marks or {})  # in the order of steps
        self.start: float | None = None  # None before the first step, and while recorded steps are repeated

    def effect_of_long_warmup(self) -> str | None:
        if self.config.warmup_steps <= max(1, LONGEST_WARMUP * self.config.steps):
            return None
        return f"the learning rate rises for {LONGEST_WARMUP:.0%} of the time"

    def share(self, step: int, pending: float = 0.0, closing: float = 0.0) -> float:
        if step not in self.marks:
            self.marks[step] = self.agreed(self.measure(step, pending, closing))
            if self.world.is_first:
                self.record(step, self.marks[step])
        elif step == next(reversed(self.marks)):
            self.measure_from(self.marks[step])
        return self.marks[step].share

    def measure_from(self, mark: Mark) -> float:
        """Continue the clock from a recorded step; returns the seconds spent."""
        if self.start is None:
            self.start = self.clock() - mark.seconds
        return self.clock() - self.start

    def measure(self, step: int, pending: float, closing: float) -> Mark:
        """The mark of a step that begins after `pending` seconds."""
        if not self.marks:
            return Mark(0.0, self.measure_from(Mark(0.0, 0.0)))
        first, last = next(iter(self.marks.values())), next(reversed(self.marks.values()))
        now = self.measure_from(last) + pending
        for_steps = self.seconds - min(closing, MOST_CLOSING * self.seconds)
        after_next = 2 * now - last.seconds  # if the next step takes as long as the last one
        is_last = self.share_at(step, (after_next - first.seconds) / for_steps) > 1
        share = 1.0 if is_last else self.share_at(step, (now - first.seconds) / for_steps)
        return Mark(max(last.share, share), now)

    def share_at(self, step: int, by_time: float) -> float:
        """The share done after `step` steps when this multiple of the time is spent."""
        if step < self.fewest_steps:
            by_time = min(by_time, max(step / self.fewest_steps, by_time / OVERTIME))
        return max(by_time, step / self.most_steps)

    def agreed(self, mark: Mark) -> Mark:
        """Broadcast the mark of the first process, because only its clock counts."""
        own = mark if self.world.is_first else Mark(0.0, 0.0)
        return Mark(self.world.total(own.share), self.world.total(own.seconds))

    def learning_rate(self, step: int, share: float) -> float:
        return learning_rate_of_share(share, self.config)

    def expected_steps(self, step: int, share: float) -> int:
        return max(step, round(step / share)) if 0 < share < 1 else step or self.config.steps

    def seconds_left(self, step: int) -> float:
        return max(0.0, self.seconds - self.marks[step].seconds) if step == self.most_steps else 0.0


LONGEST_WARMUP = 0.5  # the largest share of a training with a time budget


def learning_rate_at(step: int, config: TrainingConfig) -> float:
    """Linear warm-up to the learning rate, then the configured schedule; `step` counts from 0."""
    check_type("the step", step, Integral, "a whole number")
    check_type("the configuration", config, TrainingConfig, "a TrainingConfig")
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    return scheduled_rate((step - config.warmup_steps) / max(1, config.steps - config.warmup_steps), config)


def learning_rate_of_share(share: float, config: TrainingConfig) -> float:
    """The learning rate by the share of a time budget that is spent; `config.steps` is an estimate."""
    warmup = min(config.warmup_steps / config.steps, LONGEST_WARMUP)
    if share < warmup:
        return config.learning_rate * min(1.0, (share + 1 / config.steps) / warmup)
    return scheduled_rate((share - warmup) / (1 - warmup), config)


def scheduled_rate(progress: float, config: TrainingConfig) -> float:
    """The rate after the warm-up; progress is 0 at its end and 1 at the end of the training."""
    floor = config.final_learning_rate_share
    return config.learning_rate * (floor + (1 - floor) * SCHEDULES[config.schedule](min(progress, 1.0), config))


# The height of the rate above its final value, from 1 to 0, by progress after the warm-up (0 to 1)
SCHEDULES: dict[str, Callable[[float, TrainingConfig], float]] = {
    "cosine": lambda progress, config: 0.5 * (1 + math.cos(math.pi * progress)),  # Loshchilov and Hutter 2017
    "linear": lambda progress, config: 1 - progress,
    "stable_decay": lambda progress, config: min(1.0, (1 - progress) / config.decay_fraction),  # Hu et al. 2024
    "constant": lambda progress, config: 1.0,
}

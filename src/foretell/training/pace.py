"""The share of a training that is done, counted in steps or measured in wall time, and the learning rate for it.

A training of a given number of steps counts them. A training of a given time takes the share of the time that is spent
when a step begins, so its schedule ends with the time on a machine of any speed, idle or busy. The measured shares are
recorded; a training that resumes takes its steps with the recorded shares again, and measures beyond them.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

from foretell.config import TrainingConfig
from foretell.distributed.world import ALONE, World
from foretell.training.optimizer import learning_rate_at, learning_rate_of_share

LAST_SECONDS = 2.0  # for the picture of the curve, and for the end of the process
LEAST_SHARE = 0.1  # of the whole time that is left for steps, however long reading and tokenizing took


class Pace(ABC):
    """The share of a training that is done before a step, and the learning rate of the step."""

    def __init__(self, config: TrainingConfig):
        self.config = config

    @abstractmethod
    def share(self, step: int, pending: float = 0.0, closing: float = 0.0) -> float:
        """The share that is done before step `step`, counted from 0; 1 or more after the last step.

        pending: seconds that actions will probably take before that step. closing: seconds that they will take after
        the last step.
        """

    @abstractmethod
    def learning_rate(self, step: int, share: float) -> float:
        """The learning rate of step `step`, which begins at `share`."""

    @abstractmethod
    def expected_steps(self, step: int, share: float) -> int:
        """The number of steps in all, as far as it is known after `step` of them."""

    def seconds_left(self, step: int) -> float:
        """The seconds of a time budget that are not needed if the training ends after `step` steps."""
        return 0.0


class FixedSteps(Pace):
    """A training of `config.steps` steps."""

    def share(self, step: int, pending: float = 0.0, closing: float = 0.0) -> float:
        return step / self.config.steps

    def learning_rate(self, step: int, share: float) -> float:
        return learning_rate_at(step, self.config)

    def expected_steps(self, step: int, share: float) -> int:
        return self.config.steps


class Mark(NamedTuple):
    """The state of a time budget when a step begins: the share that is done, and all seconds that were spent."""

    share: float
    seconds: float


class TimeBudget(Pace):
    """A training that ends, with all that is due after its last step, when `seconds` of wall time are spent.

    spent: seconds before this object was made, for reading, tokenizing and measuring. marks: the recorded steps of a
    training that resumes. record: keeps the mark of a step. `config.steps` is an estimate, which sets the length of the
    warm-up as a share of the training. most_steps: the training ends after this number of steps, with its schedule,
    even if time is left.
    """

    def __init__(
        self,
        config: TrainingConfig,
        seconds: float,
        *,
        spent: float = 0.0,
        marks: Mapping[int, Mark] | None = None,
        record: Callable[[int, Mark], None] = lambda step, mark: None,
        most_steps: int | None = None,
        world: World = ALONE,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(config)
        self.most_steps = math.inf if most_steps is None else most_steps
        self.seconds, self.record, self.world, self.clock = seconds, record, world, clock
        self.marks = dict(marks or {})  # in the order of steps
        self.start = None if self.marks else clock() - spent  # None while recorded steps are taken again

    def share(self, step: int, pending: float = 0.0, closing: float = 0.0) -> float:
        if step not in self.marks:
            self.marks[step] = self.agreed(self.measure(step, pending, closing))
            if self.world.is_first:
                self.record(step, self.marks[step])
        elif step == next(reversed(self.marks)):
            self.measure_from(self.marks[step])
        return self.marks[step].share

    def measure_from(self, mark: Mark) -> float:
        """Let the clock go on from a recorded step; returns the seconds that are spent."""
        if self.start is None:
            self.start = self.clock() - mark.seconds
        return self.clock() - self.start

    def measure(self, step: int, pending: float, closing: float) -> Mark:
        """The mark of a step that begins after `pending` seconds."""
        if not self.marks:
            return Mark(0.0, self.measure_from(Mark(0.0, 0.0)))
        first, last = next(iter(self.marks.values())), next(reversed(self.marks.values()))
        now = self.measure_from(last) + pending
        time_for_steps = max(self.seconds - closing - LAST_SECONDS - first.seconds, LEAST_SHARE * self.seconds)
        share = max(last.share, (now - first.seconds) / time_for_steps, step / self.most_steps)
        took = max(0.0, now - last.seconds)
        is_last = now + took > first.seconds + time_for_steps  # the next step would take too long
        return Mark(1.0 if is_last else share, now)

    def agreed(self, mark: Mark) -> Mark:
        """The mark of the first process, on all processes: only its clock counts."""
        own = mark if self.world.is_first else Mark(0.0, 0.0)
        return Mark(self.world.total(own.share), self.world.total(own.seconds))

    def learning_rate(self, step: int, share: float) -> float:
        return learning_rate_of_share(share, self.config)

    def expected_steps(self, step: int, share: float) -> int:
        return max(step, round(step / share)) if 0 < share < 1 else step or self.config.steps

    def seconds_left(self, step: int) -> float:
        return max(0.0, self.seconds - self.marks[step].seconds) if step == self.most_steps else 0.0

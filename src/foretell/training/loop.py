"""The training loop, its pace, the actions between its steps, and early stopping.

A run with a number of steps counts them. A run with a time budget uses the share of the time that is spent when a step
begins, so its schedule ends in time on any machine, idle or busy. The measured shares are recorded. A resumed run
repeats its steps with the recorded shares, and measures the later ones.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import nn

from foretell.config import TrainingConfig
from foretell.distributed.world import ALONE, World
from foretell.training.execution import eagerly
from foretell.training.optimizer import learning_rate_at, learning_rate_of_share, set_learning_rate
from foretell.training.step import StepResult, TrainingBatch, own_rows, training_step

LAST_SECONDS = 2.0  # for the picture of the curve and the end of the process; more on a busy machine
MOST_SLOWDOWN = 5.0  # a limit, because a thread that waits for a device or a peer is not slowed by other programs
LEAST_SHARE = 0.1  # the least share of the time that is left for steps, however long reading and tokenizing took


class Pace(ABC):
    """The progress of a training at a step, and the learning rate of the step."""

    def __init__(self, config: TrainingConfig):
        self.config = config

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
    """A training that ends, including the actions after its last step, when `seconds` of wall time are spent.

    spent: seconds before this object was created, for reading, tokenizing and measuring. marks: the recorded steps of a
    resumed training. record: stores the mark of a step. `config.steps` is an estimate, which sets the length of the
    warm-up as a share of the training. most_steps: a limit at which training and schedule end even if time is left.
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
        thread_clock: Callable[[], float] = time.thread_time,
    ):
        super().__init__(config)
        self.most_steps = math.inf if most_steps is None else most_steps
        self.seconds, self.record, self.world, self.clock = seconds, record, world, clock
        self.thread_clock, self.first_times = thread_clock, (clock(), thread_clock())
        self.marks = dict(marks or {})  # in the order of steps
        self.start = None if self.marks else clock() - spent  # None while recorded steps are repeated

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
        last_seconds = LAST_SECONDS * (1 + self.slowdown()) / 2  # about half of this is computation
        time_for_steps = max(self.seconds - closing - last_seconds - first.seconds, LEAST_SHARE * self.seconds)
        share = max(last.share, (now - first.seconds) / time_for_steps, step / self.most_steps)
        took = max(0.0, now - last.seconds)
        is_last = now + took > first.seconds + time_for_steps  # the next step would take too long
        return Mark(1.0 if is_last else share, now)

    def slowdown(self) -> float:
        """Wall time divided by processor time of this thread, from 1 to MOST_SLOWDOWN: the load from other programs."""
        wall, thread = self.clock() - self.first_times[0], self.thread_clock() - self.first_times[1]
        return min(max(1.0, wall / thread), MOST_SLOWDOWN) if thread > 0 else 1.0

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
    """Something to do every `every` steps and after the last one.

    closing: the time needed after the last step, for this action and its follow-ups, in multiples of `seconds`; it may
    change during a training.
    """

    every: int
    run: Callable[[Progress], None]
    closing: Callable[[], float] = lambda: 1.0
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
            read(unread, progress)
        closing = sum(action.seconds * action.closing() for action in actions)
        progress.share = pace.share(progress.step, sum(action.seconds for action in due), closing)
        if progress.share >= 1:
            due = actions
            read(unread, progress)
        progress.seconds += time.perf_counter() - started
        with eagerly():
            for action in due:
                action.do(progress)
    read(unread, progress)


def read(unread: list[StepResult], progress: Progress) -> None:
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

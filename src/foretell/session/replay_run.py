"""Any step of a run: the run's own session, built again at the checkpoint before the step, takes its steps again.

Batches, dropout masks and draws are functions of the step, and pace.txt has the shares of time of each step, so the
weights have the same bits as in the run on the same kind of device with equal numbers of threads and processes.
Nothing is written into the run. Replayed states are kept in the user's cache folder, up to `CACHE_LIMIT`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from foretell.config.training import TrainingConfig
from foretell.errors import CheckpointError, DataError, TokenizerError, UsageError, counted
from foretell.runs.checkpoint import Checkpoint, list_checkpoints, newest_intact
from foretell.runs.run import ENVIRONMENT, FollowedRun, Run
from foretell.session.declaration import Training
from foretell.session.machine import describe_environment, log_other_machine, resumed_precision
from foretell.session.options import LongReplays
from foretell.session.protocol import session_at
from foretell.session.reporter import Reporter
from foretell.session.session import Session
from foretell.storage.files import cache_home
from foretell.training.optimizer import set_learning_rate
from foretell.training.step import StepResult, TrainingBatch, own_rows, training_step
from foretell.typesetting.numbers import format_duration

CACHE_LIMIT = 4 * 2**30  # bytes of replayed states
LONG = 60.0  # seconds; a longer replay is announced
KEY = 24  # digits of a hash in the name of a folder

logger = logging.getLogger(__name__)


class BeforeUpdate(NamedTuple):
    """The state before an update, counted from 1, and what the update takes."""

    number: int
    session: Session[Any]
    batch: TrainingBatch  # the rows of this process
    rate: float

    def take(self, look: Callable[[], None], training: TrainingConfig) -> StepResult:
        """Take the update by the step that trains, which changes the model. look: called before the weights change."""
        session = self.session
        handle = session.optimizer.register_step_pre_hook(lambda *_: look())
        try:
            return training_step(
                session.objective,
                session.optimizer,
                self.batch,
                self.number - 1,
                training,
                session.dtype,
                session.world,
            )
        finally:
            handle.remove()


class Replay:
    """The steps of a run, taken again. training: of the run's verb."""

    def __init__(self, training: Training[Any, Any], run: Run):
        self.training, self.run = training, FollowedRun.open(run.directory)
        self.record = self.run.record()
        kept = [checkpoint.step for checkpoint in list_checkpoints(run.checkpoints)]
        self.last = max([0, *kept, *(line["step"] for line in run.metrics.records())])

    def checkpoint(self, step: int) -> Checkpoint:
        """The state after `step` updates, from the run, the cache or a replay."""
        if not 0 <= step <= self.last:
            raise CheckpointError(f"{self.run.directory} has the steps 0 to {self.last:,}, not {step:,}")
        if (nearest := self.nearest(step)) is not None and nearest.step == step:
            return nearest
        session = self.session_before(max(0, step - 1), step)
        session.advance(step)
        return self.keep(session)

    def before_update(self, number: int) -> BeforeUpdate:
        if not 1 <= number <= self.last:
            raise CheckpointError(f"{self.run.directory} has the updates 1 to {self.last:,}, not {number:,}")
        session = self.session_before(number - 1, number - 1)
        if number > 1 and session.checkpoints.saved_step != number - 1:  # often asked again, for a weight
            self.keep(session)
        rate = session.pace.learning_rate(number - 1, session.progress.share)
        set_learning_rate(session.optimizer, rate)
        return BeforeUpdate(number, session, own_rows(session.task.batch(number - 1), session.world), rate)

    def session_before(self, index: int, goal: int) -> Session[Any]:
        """The session after `index` updates with the settings of the next; it will be asked to go to step `goal`."""
        nearest, settings = self.nearest(index), self.record.settings_at(index)
        began = 0 if nearest is None else nearest.step
        self.check(began, goal)
        if began < settings.step:
            nearest = self.checkpoint(settings.step)
        try:
            session = session_at(self.training, self.run, self.record.at(index), nearest, self.data, Reporter())
        except (CheckpointError, DataError, TokenizerError) as error:
            kept = ", ".join(each.directory.name for each in list_checkpoints(self.run.checkpoints))
            raise CheckpointError(
                f"{error}; without it no step of {self.run.directory} can be replayed, but it has {kept or 'nothing'}"
            ) from None
        session.compile()
        session.advance(index)
        return session

    @cached_property
    def data(self) -> Any:
        """The data that the run kept."""
        return self.training.reopen(self.run, self.record)

    def check(self, began: int, goal: int) -> None:
        """Announce a long replay or refuse it, and refuse one whose shares of time are lost."""
        last = (self.run.metrics.records() or [{"step": 1, "seconds": 0.0}])[-1]
        seconds = (goal - began) * last["seconds"] / max(1, last["step"])
        if seconds > LONG:
            steps = f"{counted(goal - began, 'step')} of {self.run.directory} again"
            if not LongReplays.are_allowed:
                raise UsageError(f"taking {steps} lasts about {format_duration(seconds)}; give --yes to do it")
            logger.info(f"replay      {steps}, about {format_duration(seconds)}")
        timed = {step for step, _, _ in self.run.pace.records()}
        if self.record.minutes is not None and (lost := {*range(began, goal)} - timed):
            raise CheckpointError(
                f"{self.run.pace.path} has no step {min(lost)}, so that rate is lost; later steps work"
            )

    # --- states that exist ------------------------------------------------------------------------------------------

    @cached_property
    def cache(self) -> Path:
        """The folder of the replayed states of this run on this machine.

        A run's environment.json is written once, so a run that was made again in the same place has another time.
        """
        device, dtype = resumed_precision(self.record, "auto", "auto")
        log_other_machine(self.run, device, dtype)
        made = self.run.directory / ENVIRONMENT
        identity = [
            str(self.run.directory.resolve()),
            self.record.to_json(),
            made.stat().st_mtime_ns if made.exists() else 0,
            describe_environment(device, dtype),
        ]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return cache_home() / "foretell" / "replayed" / digest[:KEY]

    def nearest(self, step: int) -> Checkpoint | None:
        """The newest intact state after at most `step` updates; None if the replay begins at the start."""
        existing = [*list_checkpoints(self.run.checkpoints), *list_checkpoints(self.cache)]
        before = sorted((each for each in existing if each.step <= step), key=lambda each: each.step)
        if (nearest := newest_intact(before)) is not None and nearest.directory.parent == self.cache:
            os.utime(nearest.directory)  # record the time of the last use
        return nearest

    def keep(self, session: Session[Any]) -> Checkpoint:
        """Write the session's state into the cache, and delete the states that were not used for longest."""
        session.metrics.restore(session.progress)
        session.progress.validation_loss = None  # unknown at this step
        state = session.checkpoints.write(self.cache, session.progress, session.metrics)
        states = sorted(self.cache.parent.glob("*/step-*"), key=lambda each: each.stat().st_mtime, reverse=True)
        total = 0
        for each in [state.directory, *(each for each in states if each != state.directory)]:
            total += sum(file.stat().st_size for file in each.iterdir())
            if total > CACHE_LIMIT and each != state.directory:
                shutil.rmtree(each, ignore_errors=True)
        return state

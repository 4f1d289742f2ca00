"""A session: the training of a task in its run directory, with logging, evaluation, samples and checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from foretell.config.training import TrainingConfig
from foretell.data.data_use import DataUse
from foretell.distributed.placement import freeing_gathered, replicate, shard
from foretell.distributed.world import current_world, evaluations_shared_by
from foretell.errors import ConfigError, Interrupted, counted
from foretell.runs.checkpoint import Checkpoint
from foretell.runs.run import Run
from foretell.session.checkpoints import RunCheckpoints
from foretell.session.commands import resume_command
from foretell.session.failures import AFTER_THE_LAST_STEP, StopSignal, explain_failures, explain_stop
from foretell.session.machine import Meter, describe_environment
from foretell.session.metrics import RunMetrics
from foretell.session.plots import draw_curve
from foretell.session.reporter import Reporter, Reporters
from foretell.session.state import AnyTask, SessionState
from foretell.system.device import autocast
from foretell.training.execution import Recomputing, compile_units, wants_compiling
from foretell.training.loop import Action, Progress, is_out_of_patience, record_evaluation, train
from foretell.training.optimizer import freeze, make_optimizer
from foretell.training.pace import FixedSteps, Pace
from foretell.training.step import iter_micro_batches, own_rows
from foretell.typesetting.numbers import format_duration

SEPARATOR = "\n\n" + "-" * 40 + "\n\n"  # between the samples of one step
LONG_REPORT = 2.0  # seconds; a longer one after the last step is announced

logger = logging.getLogger(__name__)


class Session(SessionState[AnyTask]):
    """Trains a task. Call `start` for a new run or `restore` to continue one, then `go`.

    The objective's parameters are moved to `device`; matrix products run in `dtype`. earlier_use: the data of the start
    model, or of the checkpoint that training continues from.
    """

    def __init__(
        self,
        run: Run,
        task: AnyTask,
        training: TrainingConfig,
        device: torch.device,
        dtype: torch.dtype,
        reporter: Reporter,
        pace: Pace | None = None,
        earlier_use: DataUse | None = None,
    ):
        super().__init__(run, task, device, dtype, Progress(), Reporters([reporter]), current_world())
        self.training, self.pace = training, pace or FixedSteps(training)
        if training.patience is not None and not task.has_held_out:
            raise ConfigError(
                "training.patience needs a validation loss, but no data is held out; leave it out, or "
                f"change {task.held_out_setting}"
            )
        task.objective.to(device)
        task.choose_kernels(device, dtype)
        freeze(task.model, training)
        globs = training.checkpoint_activations
        self.recomputing = [Recomputing(model, globs, model.dropout_rng) for model in task.models()]
        self.objective = self.spread()
        self.optimizer = make_optimizer(task.model, training, dtype)
        self.metrics = RunMetrics(run.metrics, Meter(task.flops_per_token, device, dtype), self.world.size)
        self.checkpoints = RunCheckpoints(self, training, self.optimizer, self.objective, earlier_use)

    def start(self) -> None:
        """Check the task, then write run.json, which makes the directory a run."""
        self.check()
        self.run.write_record(self.task.record, describe_environment(self.device, self.dtype))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint; the model already has its weights."""
        self.progress = self.checkpoints.restore(checkpoint, self.metrics)
        self.check()

    def check(self) -> None:
        """Let the task check the batch of the next step."""
        with self.outside_steps():
            self.task.check(self.task.batch(self.progress.step).to(self.device), self.dtype)

    def go(self) -> None:
        """Train to the last step, until patience ends, or until a signal (failures.py); then save a checkpoint."""
        began = self.progress.step
        with StopSignal() as stop, explain_failures(self.run, self.training, self.progress):
            self.reporter.ready(self.task)
            if self.progress.step == 0:
                self.report_start()
                if self.task.starts_trained:
                    self.evaluate_and_log(self.progress)
                    self.save(self.progress)
            self.compile()
            actions = self.actions()
            self.train(actions, lambda: stop.number is not None or is_out_of_patience(self.progress, self.training))
            if self.progress.share < 1:
                if not is_out_of_patience(self.progress, self.training):
                    raise self.interrupted(stop.exit_code)
                self.stop_early()
            if self.world.any(stop.number is not None):
                raise self.interrupted(stop.exit_code)
        if self.progress.step > began and (left := self.pace.seconds_left(self.progress.step)):
            steps = counted(self.progress.step, "step")
            logger.info(f"ended       after {steps}, the most for this data; {left:.0f} s are left, --steps takes more")
        if self.world.is_first:
            with explain_stop(AFTER_THE_LAST_STEP, self.run):
                draw_curve(self.run)
            if (seconds := actions[0].seconds * self.task.closing_evaluations) >= LONG_REPORT:
                logger.info(f"report      it takes about {format_duration(seconds)}")

    def train(self, actions: list[Action], should_stop: Callable[[], bool]) -> None:
        """Take steps to the last, or until `should_stop`."""
        train(
            self.objective,
            self.optimizer,
            self.task,
            self.training,
            self.progress,
            actions,
            pace=self.pace,
            dtype=self.dtype,
            world=self.world,
            should_stop=should_stop,
        )

    def advance(self, step: int) -> None:
        """Take the steps up to `step` without evaluations or anything written, as a replay does."""
        self.train([], lambda: self.progress.step >= step)

    def report_start(self) -> None:
        """Log the task's lines about the untrained model, and show its samples."""
        with self.outside_steps():
            lines = self.task.describe_start(self.task.batch(0).to(self.device), self.dtype)
        for line in lines:
            logger.info(line)
        self.sample(self.progress)

    def compile(self) -> None:
        """Compile for the batches of this run if configured; by default for long runs on a GPU."""
        if wants_compiling(self.training, self.device.type):
            batch = own_rows(self.task.batch(self.progress.step), self.world)
            _, rows = next(iter_micro_batches(batch, self.training.gradient_accumulation_steps))
            compile_units(self.task.objective, rows, self.dtype)

    def stop_early(self) -> None:
        """Save after an early end, and log the reason."""
        best, since = self.progress.best_validation_loss, self.progress.evaluations_since_best
        steps = self.pace.expected_steps(self.progress.step, self.progress.share)
        after = f"step {self.progress.step:,} of {steps:,}"
        logger.info(f"stopped     after {after}: no validation loss below {best:.3f} in {since} evaluations")
        if self.checkpoints.saved_step != self.progress.step:
            self.sample(self.progress)
            self.save(self.progress)

    def interrupted(self, exit_code: int) -> Interrupted:
        """Save after a signal; returns an error with the command that resumes."""
        saved = "checkpoint saved" if self.progress.step > 0 else "no step was taken yet"
        if self.progress.step > 0:
            self.save(self.progress)
        return Interrupted(
            f"stopped after step {self.progress.step:,}, {saved}; resume with: {resume_command(self.run)}", exit_code
        )

    # --- actions between steps -------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        return [
            Action(self.training.evaluate_every, self.evaluate_and_log),
            Action(self.training.sample_every, self.sample),
            Action(self.training.checkpoint_every, self.save),
            Action(self.training.evaluate_every, self.save_best),
            Action(self.training.log_every, self.log),  # last: `save` logs its step with the figures
        ]

    def evaluate(self, progress: Progress) -> None:
        """Evaluate at this step; the first of the task's figures is the validation loss."""
        if self.metrics.evaluated_step == progress.step:
            return
        with self.evaluating(), evaluations_shared_by(self.world):
            figures = self.task.evaluate(self.dtype)  # on all processes; the first one's figures count
        self.metrics.figures, self.metrics.evaluated_step = self.world.decide(lambda: dict(figures)), progress.step
        progress.validation_loss = next(iter(self.metrics.figures.values()), progress.validation_loss)

    def evaluate_and_log(self, progress: Progress) -> None:
        """Evaluate, and log the step even if it would not be logged otherwise."""
        self.evaluate(progress)
        record_evaluation(progress)
        self.log(progress)

    def log(self, progress: Progress) -> None:
        """Log and report the metrics of this step, unless that was done."""
        if self.metrics.log(progress):
            self.reporter.metrics(self.metrics.line, self.pace.expected_steps(progress.step, progress.share))

    def sample(self, progress: Progress) -> None:
        """Store and report the samples of the task, if there are any."""
        with self.evaluating():
            samples = self.task.samples()
        if samples:
            self.run.write_sample(progress.step, SEPARATOR.join(sample.text for sample in samples))
        for sample in samples:
            self.reporter.sample(progress.step, sample.prompt, sample.continuation)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint and a line of metrics for this step, unless it is already saved."""
        if self.checkpoints.saved_step != progress.step:
            self.evaluate(progress)
            self.checkpoints.check_finite(progress)
            self.log(progress)
            self.checkpoints.save(progress, self.metrics)

    def save_best(self, progress: Progress) -> None:
        """Save after an evaluation with the best loss so far."""
        if progress.best_validation_loss is not None and progress.evaluations_since_best == 0:
            self.save(progress)

    # --- passes through the model -----------------------------------------------------------------------------------

    def spread(self) -> nn.Module:
        """The objective, distributed over all processes."""
        objective = self.task.objective
        if self.world.size == 1:
            return objective
        if self.training.parallel == "ddp":
            return replicate(objective, self.trial_loss)
        return shard(objective, self.task.models(), self.world)

    @contextmanager
    def outside_steps(self) -> Iterator[None]:
        """Context for passes without gradients."""
        with ExitStack() as stack:
            for recomputing in self.recomputing:
                stack.enter_context(recomputing.suspended())
            yield stack.enter_context(freeing_gathered(self.objective))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context for passes in evaluation mode; restores training mode afterwards."""
        self.task.objective.eval()
        try:
            with self.outside_steps():
                yield
        finally:
            self.task.objective.train()

    def trial_loss(self, objective: nn.Module) -> torch.Tensor:
        """The loss on one row of this process; the dropout masks do not matter."""
        row = own_rows(self.task.batch(0), self.world).rows(0, 1).to(self.device)
        with autocast(self.device, self.dtype):
            return objective.train()(row).sum

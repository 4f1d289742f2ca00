"""The checkpoints of a run: saved with finite weights only, and restored if they belong to the run."""

from __future__ import annotations

import logging
import math
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foretell.config.training import TrainingConfig
from foretell.data.data_use import DataUse
from foretell.distributed.placement import gathered, own_part
from foretell.errors import CheckpointError, TrainingError
from foretell.runs.checkpoint import Checkpoint, prune
from foretell.runs.record import RUN
from foretell.runs.run import METRICS
from foretell.runs.training_state import CheckpointParts, load_optimizer, save_checkpoint
from foretell.session.metrics import RunMetrics
from foretell.session.state import SessionState
from foretell.storage.files import check_not_removed
from foretell.training.loop import Progress

logger = logging.getLogger(__name__)


class RunCheckpoints:
    """Saves and restores the task's model, the optimizer, and the progress and metrics of the training."""

    def __init__(
        self,
        session: SessionState[Any],
        training: TrainingConfig,
        optimizer: torch.optim.Optimizer,
        objective: nn.Module,
        earlier_use: DataUse | None,
    ):
        self.run, self.task, self.world = session.run, session.task, session.world
        self.training, self.optimizer, self.objective = training, optimizer, objective
        self.earlier_use = earlier_use
        self.saved_step: int | None = None

    def restore(self, checkpoint: Checkpoint, metrics: RunMetrics) -> Progress:
        """The progress at a checkpoint; restores the optimizer and the metrics. The model already has its weights."""
        state = checkpoint.training()
        for name, value in self.task.fingerprints().items():
            if state.get(name) != value:
                raise CheckpointError(
                    f"{checkpoint.directory} was trained with {name} {state.get(name)}, but this run has {value}; "
                    "start again with another --out"
                )
        if state.get("configuration") != self.task.record.configuration_digest:
            raise CheckpointError(
                f"{self.run.directory / RUN} is not the configuration that {checkpoint.directory} was trained with; it "
                "was changed or damaged: restore it, or start again with another --out"
            )
        if checkpoint.step > 0:  # at step 0 there are no moments
            load_optimizer(checkpoint, self.optimizer, self.task.model)
        progress = Progress(**state["progress"])
        metrics.restore(progress)
        if state.get("metrics") != metrics.digest.value:
            logger.warning(
                f"{self.run.directory / METRICS} was changed or damaged: its curves may be wrong; training continues"
            )
        self.saved_step = progress.step
        return progress

    def save(self, progress: Progress, metrics: RunMetrics) -> None:
        """Write the checkpoint of a step, and delete those that are not kept."""
        check_not_removed(self.run.directory)
        self.run.pace.sync()  # a checkpoint must not be newer
        self.write(self.run.checkpoints, progress, metrics)
        if self.world.is_first:
            prune(self.run.checkpoints, self.training.keep_checkpoints, progress.step, self.training.checkpoint_every)
        self.saved_step = progress.step

    def write(self, folder: Path, progress: Progress, metrics: RunMetrics) -> Checkpoint:
        """Write the checkpoint of a step into a folder."""
        parts = CheckpointParts(self.save_model, self.task.model, self.optimizer, self.state(progress, metrics))
        return save_checkpoint(folder, progress.step, parts, self.world)

    def save_model(self, directory: Path) -> None:
        """Gather the weights on the first process, which writes the model files."""
        with gathered(self.objective, self.world):
            if self.world.is_first:
                self.task.save_model(directory)
                if self.data_use is not None:
                    self.data_use.save(directory)

    @cached_property
    def data_use(self) -> DataUse | None:
        """The data that the saved weights were trained and selected on, the start model's data included."""
        own = self.task.data_use()
        return self.earlier_use if own is None else own.joined(self.earlier_use)

    def state(self, progress: Progress, metrics: RunMetrics) -> dict[str, Any]:
        """The content of training.json."""
        own = {
            "step": progress.step,
            "tokens": progress.tokens,
            "seed": self.training.seed,
            "schedule": self.training.schedule,
            "validation_loss": progress.validation_loss,
            "configuration": self.task.record.configuration_digest,
            "evaluation": dict(metrics.figures),
            "metrics": metrics.digest.value,
            "progress": vars(progress),
        }
        fingerprints = self.task.fingerprints()
        assert not own.keys() & fingerprints.keys(), f"fingerprints cannot be called {own.keys() & fingerprints.keys()}"
        return {**own, **fingerprints}

    def check_finite(self, progress: Progress) -> None:
        """Refuse to save non-finite weights, or weights with a non-finite validation loss."""
        problem = None
        if progress.validation_loss is not None and not math.isfinite(progress.validation_loss):
            problem = f"the validation loss is {progress.validation_loss}"
        for path, weight in self.task.model.named_parameters():
            if problem is None and not bool(torch.isfinite(own_part(weight)).all()):
                problem = f"'{path}' is not finite"
        if self.world.any(problem is not None):
            raise TrainingError(
                f"step {progress.step}: {problem}; not saved, but the checkpoint before is good. Try a lower "
                "--training.learning-rate"
            )

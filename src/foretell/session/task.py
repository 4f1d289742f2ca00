"""`Task`: the interface of model, data and evaluation to a training session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foretell.data.data_use import DataUse
from foretell.evaluation.material import Material
from foretell.evaluation.replayed_row import ReplayedRow
from foretell.model.dispatch import Use, choose_kernels
from foretell.model.dropout import DropoutHost
from foretell.runs.record import RunRecord
from foretell.training.step import TrainingBatch


@dataclass(frozen=True)
class Sample:
    """A prompt and the model's continuation, shown during training."""

    prompt: str
    continuation: str

    @property
    def text(self) -> str:
        return self.prompt + self.continuation


class Task(ABC):
    """The model, the data and the evaluation of a training.

    The session handles the run's files, signals, ranks and devices; a task does not. Batches are `TrainingBatch`es with
    `count`, `tokens`, `len`, `rows` and `to`; only the objective reads more.
    """

    config: Any  # sections, including `training`
    record: RunRecord  # what run.json has of the run; the protocol sets it before the session begins
    objective: nn.Module  # maps a batch to its `Loss`; holds the model
    model: nn.Module  # the trained and saved weights, whose paths identify the optimizer's state and frozen weights
    row_length: int = 0  # length of the longest rows, for the choice of kernels
    flops_per_token: int | None = None  # in training, per token read; if known, MFU is logged
    has_held_out: bool = True  # False: no data to evaluate on
    closing_evaluations: float = 0.0  # duration of the closing report, in evaluations; `evaluate` may set it
    material: Material  # the kind of data, for advice on how to test the model
    held_out_setting: str = ""  # the setting for the amount of held-out data
    split_rule: str | None = None  # the rule that chose the held-out data, for run.json

    @property
    def starts_trained(self) -> bool:
        """True if the initial weights are also a checkpoint, which may remain the best."""
        return False

    @abstractmethod
    def batch(self, step: int) -> TrainingBatch:
        """The batch of a step, counted from 0; depends only on the step, so training can resume anywhere."""

    def row_as_text(self, row: Any, step: int, index: int) -> ReplayedRow:
        """Row `index` of the batch of a step, a batch of one row, with the losses in the objective's current mode."""
        return ReplayedRow(None, [])

    @abstractmethod
    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        """Figures of the current weights on held-out data, by name; empty if no data is held out.

        The first figure (lower is better) determines the best checkpoint and the end of patience. It is logged as
        `validation_loss`, the others by their names. Matrix products run in `dtype`; the model is in evaluation mode.
        """

    @abstractmethod
    def save_model(self, directory: Path) -> None:
        """Write the model's files into an existing directory, complete for loading without the run."""

    def data_use(self) -> DataUse | None:
        """The data that the weights are trained and selected on, saved with every checkpoint; None: not recorded."""
        return None

    def models(self) -> list[DropoutHost]:
        """The models inside the objective."""
        return [module for module in self.objective.modules() if isinstance(module, DropoutHost)]

    def choose_kernels(self, device: torch.device, dtype: torch.dtype) -> None:
        """Choose the kernels for training on a device, with matrix products in `dtype`."""
        for model in self.models():
            choose_kernels(model, Use(device, dtype, self.row_length, is_training=True))

    def fingerprints(self) -> dict[str, str]:
        """Digests by name, stored in every checkpoint, which must be equal when a run resumes."""
        return {}

    def samples(self) -> list[Sample]:
        """Outputs of the model to show and store."""
        return []

    def check(self, batch: Any, dtype: torch.dtype) -> None:  # noqa: B027 - most tasks have nothing to check
        """Raise a `TrainingError` if a batch on the device shows a problem."""

    def describe_start(self, batch: Any, dtype: torch.dtype) -> list[str]:
        """Log lines about the model before its first step, given the first batch on the device."""
        return []

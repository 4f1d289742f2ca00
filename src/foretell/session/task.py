"""`Task`: the interface between a training session and the work: model, data, evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foretell.model.dropout import DropoutHost
from foretell.model.kernels.dispatch import Use, choose_kernels
from foretell.training.step import TrainingBatch


@dataclass(frozen=True)
class Sample:
    """An output of the model to show during training: a prompt and its continuation."""

    prompt: str
    continuation: str

    @property
    def text(self) -> str:
        return self.prompt + self.continuation


class Task(ABC):
    """The model, the data and the evaluation of a training.

    A task never touches the files of the run, signals or ranks, and moves nothing between devices: the session does.
    Batches are `TrainingBatch`es: they have `count`, `tokens`, `len`, `rows` and `to`. Only the objective reads more.
    """

    config: Any  # sections, `training` among them
    about: dict[str, Any]  # the entries of run.json beyond the configuration
    objective: nn.Module  # maps a batch to its `Loss`; holds the model
    model: nn.Module  # whose weights are trained and saved; their paths name the optimizer's state and frozen weights
    row_length: int = 0  # of the longest rows, for which kernels are chosen
    flops_per_token: int | None = None  # of training, per token that is read; where it is known, MFU is logged
    has_held_out: bool = True  # False: no data to evaluate on
    # Duration of the closing report, in evaluations. A training of a given time keeps it free; `evaluate` may set it.
    closing_evaluations: float = 0.0
    starts_trained: bool = False  # True: the first weights are a checkpoint too, which may stay the best
    held_out_setting: str = ""  # the setting that decides how much data is held out

    @abstractmethod
    def batch(self, step: int) -> TrainingBatch:
        """The batch of a step, counted from 0: a function of the step alone, so that training can resume anywhere."""

    @abstractmethod
    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        """Figures of the current weights on held-out data, by name; empty where no data is held out.

        The first one, lower is better, decides which checkpoint is best and when patience ends. It is logged as
        `validation_loss`, the others under their own names. Matrix products run in `dtype`, the model is in evaluation
        mode.
        """

    @abstractmethod
    def save_model(self, directory: Path) -> None:
        """Write the files of the model into an existing directory: all that is needed to load it without the run."""

    def record(self) -> dict[str, Any]:
        """The entries of run.json: `config` (sections as JSON, with `training`), `data` (names), `size` and more."""
        parameters = sum(weight.numel() for weight in self.model.parameters())
        return {"config": self.config.model_dump(mode="json"), **self.about, "parameters": parameters}

    def models(self) -> list[DropoutHost]:
        """The whole models inside the objective."""
        return [module for module in self.objective.modules() if isinstance(module, DropoutHost)]

    def choose_kernels(self, device: torch.device, dtype: torch.dtype) -> None:
        """Choose the kernels for training on a device, with matrix products in `dtype`."""
        for model in self.models():
            choose_kernels(model, Use(device, dtype, self.row_length, is_training=True))

    def fingerprints(self) -> dict[str, str]:
        """Digests, by name, that must be the same when a run resumes; kept in every checkpoint."""
        return {}

    def samples(self) -> list[Sample]:
        """Outputs of the model to show and keep."""
        return []

    def check(self, batch: Any, dtype: torch.dtype) -> None:  # noqa: B027 - most tasks have nothing to check
        """Refuse to train, by a `TrainingError`, where a batch on the device shows that something is wrong."""

    def describe_start(self, batch: Any, dtype: torch.dtype) -> list[str]:
        """Lines for the log about the model before its first step, given its first batch on the device."""
        return []

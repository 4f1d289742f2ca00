"""The common part of tuning with a head and tuning on conversations, which both start from a model."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from foretell.config.model import ModelConfig
from foretell.config.weight_shapes import weight_shapes
from foretell.errors import UsageError
from foretell.language_model import LanguageModel, load_model
from foretell.model.lora import LoRAConfig
from foretell.paths import matches
from foretell.runs.record import RunRecord
from foretell.saved_model.layer_parts import LORA, add_adapters
from foretell.session.declaration import AnyRequest, AnyTask, ChosenConfig, Machine, Training
from foretell.session.fit import Footprint
from foretell.session.start import Start

SMALL_WIDTH = 512  # narrower models have a larger default learning rate


class TunedTraining(Training[AnyRequest, AnyTask]):
    """Training that starts from a trained model, with `--minutes` measured on the run's batches."""

    @property
    def start(self) -> Start:
        if self.request.start is None:
            raise UsageError(f"give a MODEL to start from: foretell {self.verb} MODEL DATA")
        return self.request.start

    def start_of(self, data: Any) -> Start:
        return self.start

    @abstractmethod
    def configure(self, data: Any, steps: int | None = None) -> Any:
        """The configuration; `steps` is for a training with a time limit."""

    def recorded(self, data: Any) -> dict[str, Any]:
        """Choices outside the configuration, for `RunRecord.task`."""
        return {}

    def most_steps(self, config: Any) -> int:
        """The maximum number of steps of a training with a time limit. config: for the usual epochs, without the limit.

        With more steps, the best checkpoint would be an early one at a high learning rate.
        """
        return config.training.steps

    def choose(self, data: Any, machine: Machine) -> ChosenConfig:
        config, reasons = self.configure(data), []
        most = self.most_steps(config)
        if self.request.minutes is not None:
            steps, why = self.timed_steps(config, data, machine, most)
            config, reasons = self.configure(data, steps), [f"steps       {steps:,}: {why}"]
        return ChosenConfig(config, self.start_of(data).name, reasons, self.recorded(data), most)

    def words_to_extend(self, record: RunRecord, run: str) -> list[str]:
        return [*self.verb.split(), run, *record.data]

    def footprint_of(self, config: Any, row: ModelConfig, rows: int | None = None) -> Footprint:
        """The sizes of a training; with LoRA, the model's weights are frozen, and the updates are not counted."""
        shapes, lora = weight_shapes(config.model), config.lora
        trained = ("**",) if lora is None else lora.also_trained
        frozen = tuple(path for path in shapes if not any(matches(glob, path) for glob in trained))
        return Footprint(shapes, row, rows, frozen)

    def load_model(self, directory: Path, device: torch.device) -> LanguageModel:
        return load_model(directory, device, for_training=True)


def with_updates(model: LanguageModel, lora: LoRAConfig | None, seed: int) -> LanguageModel:
    """The model with any requested LoRA updates."""
    if lora is None:
        return model
    return replace(model, parts={**model.parts, LORA: add_adapters(model.decoder, lora, seed)})

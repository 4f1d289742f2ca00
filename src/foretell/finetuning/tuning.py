"""The common part of tuning with a head and tuning on conversations, which both start from a model."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import weight_shapes
from foretell.errors import UsageError, counted
from foretell.language_model import LanguageModel, load_model
from foretell.model.lora import LoRAConfig
from foretell.paths import matches
from foretell.planning import estimate
from foretell.planning.estimate import DeviceMemory
from foretell.runs.record import RunRecord
from foretell.saved_model.layer_parts import LORA, add_adapters
from foretell.session.declaration import AnyRequest, AnyTask, ChosenConfig, Machine, Training
from foretell.session.fit import Footprint
from foretell.session.start import Start
from foretell.typesetting.numbers import format_bytes

ACTIVATIONS = 1 / 16  # the share of the memory; on a CPU larger micro-batches are not faster
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
        """The configuration, with micro-batches by memory unless their number is given."""
        config = self.configure(data)
        given = self.request.section("training").get("gradient_accumulation_steps")
        count, memory = micro_batches(self.footprint(config, data), config.training, machine.memory)
        reasons = [] if given else [memory]

        def divided(config: Any) -> Any:
            training = config.training.model_copy(update={"gradient_accumulation_steps": given or count})
            return config.model_copy(update={"training": training})

        config, most = divided(config), self.most_steps(config)
        if self.request.minutes is not None:
            steps, why = self.timed_steps(config, data, machine, most)
            config, reasons = divided(self.configure(data, steps)), [f"steps       {steps:,}: {why}", *reasons]
        return ChosenConfig(config, self.start_of(data).name, reasons, self.recorded(data), most)

    def words_to_extend(self, record: RunRecord, run: str) -> list[str]:
        return [*self.verb.split(), run, *record.data]

    def footprint_of(self, config: Any, row: ModelConfig, rows: int | None = None) -> Footprint:
        """The sizes of a training; with LoRA, the model's weights are frozen, and the updates are not counted."""
        shapes, trained = weight_shapes(config.model), trained_weights(config.lora)
        frozen = tuple(path for path in shapes if not any(matches(glob, path) for glob in trained))
        return Footprint(shapes, row, rows, frozen)

    def load_model(self, directory: Path, device: torch.device) -> LanguageModel:
        return load_model(directory, device, for_training=True)


def micro_batches(footprint: Footprint, training: TrainingConfig, memory: DeviceMemory) -> tuple[int, str]:
    """The smallest number of micro-batches whose activations take at most ACTIVATIONS of the memory, and a log line.

    The line has the memory of the process: the training, the model that it starts from, and the program.
    """
    shapes, row, rows, frozen = footprint
    needed = {"batch_size": rows or training.batch_size, "frozen": (*training.frozen, *frozen)}
    for count in (1, *estimate.accumulations(training, memory)):
        divided = training.model_copy(update={**needed, "gradient_accumulation_steps": count})
        parts = estimate.training_memory(row, shapes, divided, memory)
        if parts["activations"].high <= ACTIVATIONS * memory.size:
            break
    # The first model's weights stay: as large as the gradients, because both copies share what is frozen
    total = estimate.total(estimate.with_program(parts, memory)) + parts["gradients"]
    together = counted(estimate.rows_at_once(divided, memory.processes), "row")
    return count, (
        f"memory      {format_bytes(total.low)} to {format_bytes(total.high)}; micro-batches of {together} of at most "
        f"{row.context_length:,} tokens"
    )


def trained_weights(lora: LoRAConfig | None) -> tuple[str, ...]:
    """Globs of the model's weights that a training changes."""
    return ("**",) if lora is None else lora.also_trained


def with_updates(model: LanguageModel, lora: LoRAConfig | None, seed: int) -> LanguageModel:
    """The model with any requested LoRA updates."""
    if lora is None:
        return model
    return replace(model, parts={**model.parts, LORA: add_adapters(model.decoder, lora, seed)})

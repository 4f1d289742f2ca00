"""A plan: memory, arithmetic and time of a training, and memory and speed of generation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from typing import Any

import torch

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import count_parameters, weight_shapes
from foretell.errors import ConfigError, UsageError, check_count, counted
from foretell.planning import estimate, speed
from foretell.planning.estimate import Range
from foretell.system.device import choose_device, choose_inference_dtype, choose_training_dtype
from foretell.typesetting.document import DocumentSection, Paragraph, Part, Table
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import format_bytes, format_seconds, round_number

MOST_TOKENS, MOST_GPUS = 1e18, 1_000_000


@dataclass(frozen=True)
class Devices:
    """`count` devices of a kind. device: this machine's best device if the plan is for this machine."""

    accelerator: speed.Accelerator
    count: int
    device: torch.device | None = None

    @property
    def memory(self) -> estimate.DeviceMemory:
        if self.device is None:
            size = int(self.accelerator.memory)
            return estimate.DeviceMemory(self.accelerator.name, size, self.count, torch.bfloat16)
        here = estimate.device_memory(self.device)
        return replace(here, processes=self.count, dtype=choose_training_dtype("auto", self.device))

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight and of an element of the cache in generation."""
        return 2 if self.device is None else choose_inference_dtype("auto", self.device).itemsize


def find_devices(name: str, count: int) -> Devices:
    """The devices of a name; `this` is the best device of this machine."""
    if not (isinstance(count, Integral) and 1 <= count <= MOST_GPUS):
        raise UsageError(f"gpus {count} is not a number of devices; give 1 or more, at most {MOST_GPUS:,}")
    if name != speed.THIS:
        return Devices(speed.find_accelerator(name), count)
    device = choose_device("auto")
    if count > (there := torch.cuda.device_count() if device.type == "cuda" else 1):
        raise UsageError(f"gpus {count}: this machine has {there} {device.type}; name another device as gpu")
    size = estimate.device_memory(device).size
    rate = speed.peak_flops(device, choose_inference_dtype("auto", device))
    here = speed.Accelerator(f"{device.type} of this machine", size, speed.read_bandwidth(device), rate, "measured now")
    return Devices(here, count, device)


@dataclass(frozen=True)
class TrainingPlan:
    """A training: its memory on each device by part, its cost, and the speed that the time is based on.

    ways: changes with which it surely fits, if it may not fit.
    """

    memory: dict[str, Range]
    rows: int
    steps: int
    cost: estimate.Cost
    measured: speed.Speed
    ways: list[str]


def plan_training(model: ModelConfig, training: TrainingConfig, tokens: float, devices: Devices) -> TrainingPlan:
    """Plan a training on a number of tokens.

    Raises ConfigError for a training that cannot fit; the message lists changes that would fit.
    """
    if not 1 <= tokens <= MOST_TOKENS:
        raise UsageError(f"tokens {tokens:g} is not between 1 and {MOST_TOKENS:g}")
    if training.batch_size < devices.count * training.gradient_accumulation_steps:
        raise ConfigError(
            f"{training.batch_size} rows per step are fewer than one for each of {devices.count} devices and "
            f"{training.gradient_accumulation_steps} micro-batches; raise --training.batch-size"
        )
    training = training.model_copy(update={"steps": math.ceil(tokens / (training.batch_size * model.context_length))})
    memory, shapes = devices.memory, weight_shapes(model)
    estimate.check_training_fits(model, shapes, training, memory)
    flops = estimate.training_flops(model, training, tokens, devices.count)
    if devices.device is None:
        measured = speed.speed_of(devices.accelerator)
    else:
        measured = speed.probe(model, training, devices.device, choose_training_dtype("auto", devices.device))
    cost = estimate.training_cost(flops, training, measured.rate, devices.count)
    parts = estimate.with_program(estimate.training_memory(model, shapes, training, memory), memory)
    ways = [*estimate.iter_ways(model, shapes, training, memory)] if estimate.total(parts).high > memory.size else []
    return TrainingPlan(parts, estimate.rows_at_once(training, devices.count), training.steps, cost, measured, ways)


@dataclass(frozen=True)
class Generation:
    """Generation of one text on one device. weights, cache_per_token: in bytes."""

    weights: int
    cache_per_token: int
    context: int
    tokens_per_second: Range


def plan_generation(model: ModelConfig, devices: Devices, context: int | None = None) -> Generation:
    """Plan generation on one device with `context` tokens of cache, by default the model's context.

    A step reads all weights once, and all keys and values. This bounds the speed, between a full and an empty cache.
    """
    context = model.context_length if context is None else context
    check_count("context", context)
    if context > model.context_length:
        raise UsageError(f"context {context} is not between 1 and the model's context of {model.context_length:,}")
    here = devices.accelerator
    weights = count_parameters(model) * devices.element_bytes
    per_token = model.cache_bytes_per_token(devices.element_bytes)
    if weights > here.memory:
        raise ConfigError(
            f"generating is planned on one device, and weights of {format_bytes(weights)} do not fit the "
            f"{format_bytes(here.memory)} of {here.name}; take a device with more memory or a smaller --size, or plan "
            "the training alone with --only training"
        )
    rate = Range(here.bandwidth / (weights + context * per_token), here.bandwidth / weights)
    return Generation(weights, per_token, context, rate)


@dataclass(frozen=True)
class Plan(Shown):
    """A training, a generation, or both, of a model on devices. `print` shows tables; figures are ranges."""

    size: str
    model: ModelConfig
    training: TrainingConfig
    tokens: float
    devices: Devices
    trained: TrainingPlan | None
    generated: Generation | None

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"size": self.size, "parameters": count_parameters(self.model)}
        facts |= {"config": self.model.model_dump(mode="json")}
        facts |= {"gpu": asdict(self.devices.accelerator), "gpus": self.devices.count}
        if self.trained is not None:
            facts["training"] = {
                "tokens": self.tokens,
                "steps": self.trained.steps,
                "batch_size": self.training.batch_size,
                "rows_at_once": self.trained.rows,
                "optimizer": self.training.optimizer,
                "parallel": self.training.parallel,
                "checkpoint_activations": list(self.training.checkpoint_activations),
                "memory": {name: asdict(size) for name, size in self.trained.memory.items()},
                "memory_together": asdict(estimate.total(self.trained.memory)),
                **asdict(self.trained.cost),
                "speed": asdict(self.trained.measured),
            }
        if self.generated is not None:
            facts["generating"] = asdict(self.generated)
        return facts

    def document(self) -> DocumentSection:
        """Tables of at most 80 columns."""
        parts: list[Part] = []
        if self.trained is not None:
            parts += self._training_parts(self.trained)
        if self.generated is not None:
            parts += self._generating_parts(self.generated)
        parameters, context = count_parameters(self.model), self.model.context_length
        return DocumentSection(f"{self.size}: {parameters:,} parameters, context {context:,}", parts)

    def _training_parts(self, plan: TrainingPlan) -> list[Part]:
        here, training, together = self.devices.accelerator, self.training, estimate.total(plan.memory)
        parallel = f" by {training.parallel}" if self.devices.count > 1 else ""
        again = ", activations computed again" if training.checkpoint_activations else ""
        memory = [range_row(name, size, format_bytes) for name, size in plan.memory.items()]
        memory.append(range_row(f"together, of {format_bytes(here.memory)}", together, format_bytes))
        cost = [
            range_row("FLOPs", plan.cost.flops, lambda value: f"{value:.3g}"),
            range_row("time", plan.cost.seconds, format_seconds),
            range_row("device hours", plan.cost.device_hours, round_number),
        ]
        warning = f"It may not fit; this would: {', or '.join(plan.ways) or 'a smaller --size'}."
        return [
            Paragraph(
                f"Trained on {self.tokens:.3g} tokens: {counted(plan.steps, 'step')} of "
                f"{counted(training.batch_size, 'row')} on {self.devices.count} x {here.name}{parallel}, "
                f"with {training.optimizer} and {plan.rows:,} x {self.model.context_length:,} tokens at once{again}."
            ),
            Table(("memory of each device", "at least", "at most"), memory),
            *([Paragraph(warning)] if together.high > here.memory else []),
            Table(("training", "at least", "at most"), cost),
            Paragraph(f"Based on {plan.measured.measurement}."),
        ]

    def _generating_parts(self, plan: Generation) -> list[Part]:
        here = self.devices.accelerator
        rows = [
            range_row("weights", Range.exact(plan.weights), format_bytes),
            range_row("cache per token", Range.exact(plan.cache_per_token), format_bytes),
            range_row("tokens/s", plan.tokens_per_second, round_number),
        ]
        return [
            Table((f"generating on one {here.name}", "at least", "at most"), rows),
            Paragraph(
                f"One text, bound by reading {format_bytes(here.bandwidth)}/s: with a full cache of {plan.context:,} "
                "tokens, and with an empty one."
            ),
        ]


def range_row(name: str, size: Range, written: Callable[[float], str]) -> tuple[str, str, str]:
    return name, written(size.low), written(size.high)

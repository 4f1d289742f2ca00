"""A plan: the memory, arithmetic, time and money of a training, and what generating with the model takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from foretell.config import ModelConfig, TrainingConfig
from foretell.device import choose_device, choose_inference_dtype, choose_training_dtype
from foretell.errors import ConfigError, UsageError
from foretell.files import format_bytes
from foretell.model.cost import count_parameters
from foretell.model.init import weight_shapes
from foretell.planning.calibration import Basis, nearest
from foretell.planning.fitting import check_training_fits
from foretell.planning.hardware import THIS, Accelerator, find_accelerator
from foretell.planning.inference import Generation, plan_generation
from foretell.planning.memory import DeviceMemory, device_memory, rows_at_once, training_memory
from foretell.planning.probe import Probe, peak_flops, probe, read_bandwidth
from foretell.planning.ranges import Range
from foretell.planning.training_time import Cost, training_cost, training_flops

MOST_TOKENS = 1e18


@dataclass(frozen=True)
class Place:
    """Where to compute: devices of a kind. device: the one that is here, for this machine."""

    accelerator: Accelerator
    count: int
    device: torch.device | None = None

    @property
    def memory(self) -> DeviceMemory:
        """What each of them has, for a training."""
        if self.device is None:
            size = int(self.accelerator.memory)
            return DeviceMemory(self.accelerator.name, size, self.count, torch.bfloat16)
        here = device_memory(self.device)
        return replace(here, processes=self.count, dtype=choose_training_dtype("auto", self.device))

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight and of an element of the cache in generation."""
        return 2 if self.device is None else choose_inference_dtype("auto", self.device).itemsize


@dataclass(frozen=True)
class TrainingPlan:
    """A training: its memory on each device by part, its cost, and what the time is based on: a row or a probe."""

    memory: dict[str, Range]
    rows: int
    cost: Cost
    basis: Basis | Probe


def find_place(name: str, count: int) -> Place:
    """The devices of a name; `this` is the best device of this machine."""
    if count < 1:
        raise UsageError(f"--gpus {count} is not a number of devices; give 1 or more")
    if name != THIS:
        return Place(find_accelerator(name), count)
    device = choose_device("auto")
    size = device_memory(device).size
    rate = peak_flops(device, choose_inference_dtype("auto", device))
    here = Accelerator(f"this {device.type}", size, read_bandwidth(device), rate, "measured now")
    return Place(here, count, device)


def plan_training(
    model: ModelConfig, training: TrainingConfig, tokens: float, place: Place, price: float | None = None
) -> TrainingPlan:
    """Plan a training on so many tokens. One that cannot fit is a `ConfigError` that says what would.

    price: of one device for an hour.
    """
    check_numbers(tokens, price)
    memory, shapes = place.memory, weight_shapes(model)
    if training.batch_size < place.count * training.gradient_accumulation_steps:
        raise ConfigError(
            f"{training.batch_size} rows per step are fewer than one for each of {place.count} devices and "
            f"{training.gradient_accumulation_steps} micro-batches; raise --training.batch-size"
        )
    check_training_fits(model, shapes, training, memory)
    flops = training_flops(model, training, tokens, place.count)
    basis, rate = find_rate(model, training, flops, tokens, place)
    cost = training_cost(flops, training, rate, place.count, price)
    return TrainingPlan(
        training_memory(model, shapes, training, memory), rows_at_once(training, place.count), cost, basis
    )


def find_rate(
    model: ModelConfig, training: TrainingConfig, flops: Range, tokens: float, place: Place
) -> tuple[Basis | Probe, Range]:
    """What the time is based on, and the rate of one device in FLOP/s that follows from it."""
    if place.device is None:
        basis = nearest(flops.high / tokens, tokens, place.accelerator.name)
        return basis, basis.share * place.accelerator.peak_flops
    measured = probe(model, training, place.device, choose_training_dtype("auto", place.device))
    return measured, measured.rate


def check_numbers(tokens: float, price: float | None) -> None:
    """Refuse tokens and prices that are not possible."""
    if not 1 <= tokens <= MOST_TOKENS:
        raise UsageError(f"--tokens {tokens:g} is not between 1 and {MOST_TOKENS:g}")
    if price is not None and not 0 < price < float("inf"):
        raise UsageError(f"--price {price:g} is not a positive number; give the price of one device for an hour")


def plan_generating(model: ModelConfig, place: Place, context: int | None = None) -> Generation:
    """Plan generation on one device with so many tokens for each user, by default the model's context."""
    context = model.context_length if context is None else context
    if not 1 <= context <= model.context_length:
        raise UsageError(f"--context {context} is not between 1 and the model's context of {model.context_length:,}")
    here = place.accelerator
    weights = count_parameters(model) * place.element_bytes
    if weights > here.memory:
        raise ConfigError(
            f"weights of {format_bytes(weights)} do not fit the {format_bytes(here.memory)} of {here.name}; take a "
            "device with more memory, or a smaller --size"
        )
    return plan_generation(model, place.element_bytes, here.memory, here.bandwidth, here.peak_flops, context)

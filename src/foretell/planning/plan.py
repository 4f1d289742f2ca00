"""A plan: memory, arithmetic, time and money of a training, and the speed and users of generation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any

import torch

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.device import choose_device, choose_inference_dtype, choose_training_dtype
from foretell.errors import ConfigError, UsageError, check_count
from foretell.files import format_bytes
from foretell.generation.block_table import blocks_for
from foretell.generation.engine import MEMORY_SHARE
from foretell.model.paged_cache import POSITIONS_PER_BLOCK
from foretell.planning import estimate, speed
from foretell.planning.estimate import Range
from foretell.typesetting.document import DocumentSection, Paragraph, Part, Table
from foretell.typesetting.html import Shown
from foretell.weight_shapes import count_parameters, weight_shapes

MOST_TOKENS, MOST_GPUS = 1e18, 1_000_000
UNITS = ((86_400 * 365, "years"), (86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


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
    """A training: its memory on each device by part, its cost, and the basis of the time: a row or a probe.

    ways: changes with which it surely fits, if it may not fit.
    """

    memory: dict[str, Range]
    rows: int
    steps: int
    cost: estimate.Cost
    basis: speed.Basis | speed.Probe
    ways: list[str]


def plan_training(
    model: ModelConfig, training: TrainingConfig, tokens: float, devices: Devices, price: float | None = None
) -> TrainingPlan:
    """Plan a training on a number of tokens. price: of one device for an hour.

    Raises ConfigError for a training that cannot fit; the message lists changes that would fit.
    """
    if not 1 <= tokens <= MOST_TOKENS:
        raise UsageError(f"tokens {tokens:g} is not between 1 and {MOST_TOKENS:g}")
    if price is not None and not (isinstance(price, Real) and 0 < price < math.inf):
        raise UsageError(f"price {price} is not a positive number; give the price of one device for an hour")
    if training.batch_size < devices.count * training.gradient_accumulation_steps:
        raise ConfigError(
            f"{training.batch_size} rows per step are fewer than one for each of {devices.count} devices and "
            f"{training.gradient_accumulation_steps} micro-batches; raise --training.batch-size"
        )
    training = training.model_copy(update={"steps": math.ceil(tokens / (training.batch_size * model.context_length))})
    memory, shapes = devices.memory, weight_shapes(model)
    estimate.check_training_fits(model, shapes, training, memory)
    flops = estimate.training_flops(model, training, tokens, devices.count)
    basis, rate = find_rate(model, training, flops, tokens, devices)
    cost = estimate.training_cost(flops, training, rate, devices.count, price)
    parts = estimate.training_memory(model, shapes, training, memory)
    ways = [*estimate.iter_ways(model, shapes, training, memory)] if estimate.total(parts).high > memory.size else []
    return TrainingPlan(parts, estimate.rows_at_once(training, devices.count), training.steps, cost, basis, ways)


def find_rate(
    model: ModelConfig, training: TrainingConfig, flops: Range, tokens: float, devices: Devices
) -> tuple[speed.Basis | speed.Probe, Range]:
    """The basis of the time estimate, and the rate of one device in FLOP/s that follows from it."""
    if devices.device is None:
        basis = speed.nearest(flops.high / tokens, tokens, devices.accelerator.name)
        return basis, basis.share * devices.accelerator.peak_flops
    measured = speed.probe(model, training, devices.device, choose_training_dtype("auto", devices.device))
    return measured, measured.rate


@dataclass(frozen=True)
class Generation:
    """Generation on one device. weights, cache_per_token: in bytes; users: the number that fit."""

    weights: int
    cache_per_token: int
    context: int
    tokens_per_second: Range
    users: Range
    tokens_per_second_of_all: float


def plan_generation(model: ModelConfig, devices: Devices, context: int | None = None) -> Generation:
    """Plan generation on one device with `context` tokens of cache for each user, by default the model's context.

    A step reads all weights once, and the keys and values of all users. This bounds the speed of one user, between a
    full and an empty cache. The number of users is what fits the engine's default share of memory for its cache, and
    what fits all memory that the weights leave. With all users, memory or arithmetic bounds the speed.
    """
    context = model.context_length if context is None else context
    check_count("context", context)
    if context > model.context_length:
        raise UsageError(f"context {context} is not between 1 and the model's context of {model.context_length:,}")
    here = devices.accelerator
    parameters = count_parameters(model)
    weights, per_token = parameters * devices.element_bytes, model.cache_bytes_per_token(devices.element_bytes)
    if weights > here.memory:
        raise ConfigError(
            f"generating is planned on one device, and weights of {format_bytes(weights)} do not fit the "
            f"{format_bytes(here.memory)} of {here.name}; take a device with more memory or a smaller --size, or plan "
            "the training alone with --only training"
        )
    cache = context * per_token
    left = here.memory - weights
    users = Range(
        users_in(min(left, here.memory // MEMORY_SHARE), per_token, context), users_in(left, per_token, context)
    )
    by_memory = users.high * here.bandwidth / (weights + users.high * cache)
    return Generation(
        weights,
        per_token,
        context,
        Range(here.bandwidth / (weights + cache), here.bandwidth / weights),
        users,
        min(by_memory, here.peak_flops / (2 * parameters)),
    )


def users_in(memory: float, cache_per_token: int, context: int) -> int:
    """The number of caches of `context` tokens that fit, in whole blocks; one block is reserved for padding."""
    blocks = int(memory // (cache_per_token * POSITIONS_PER_BLOCK)) - 1
    return max(0, blocks // blocks_for(context))


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
                "basis": self.trained.basis.to_json(),
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
            range_row("device hours", plan.cost.device_hours, estimate.round_number),
        ]
        if plan.cost.money is not None:
            cost.append(range_row("money", plan.cost.money, estimate.round_number))
        warning = f"It may not fit; this would: {', or '.join(plan.ways) or 'a smaller --size'}."
        return [
            Paragraph(
                f"Trained on {self.tokens:.3g} tokens: {plan.steps:,} steps of {training.batch_size:,} rows on "
                f"{self.devices.count} x {here.name}{parallel}, with {training.optimizer} and "
                f"{plan.rows:,} x {self.model.context_length:,} tokens at once{again}."
            ),
            Table(("memory of each device", "at least", "at most"), memory),
            *([Paragraph(warning)] if together.high > here.memory else []),
            Table(("training", "at least", "at most"), cost),
            Paragraph(plan.basis.describe(here.name)),
        ]

    def _generating_parts(self, plan: Generation) -> list[Part]:
        here = self.devices.accelerator
        rows = [
            range_row("weights", Range.exact(plan.weights), format_bytes),
            range_row("cache per token", Range.exact(plan.cache_per_token), format_bytes),
            range_row("tokens/s, one user", plan.tokens_per_second, estimate.round_number),
            range_row(f"users of {plan.context:,} tokens", plan.users, estimate.round_number),
        ]
        return [
            Table((f"generating on one {here.name}", "at least", "at most"), rows),
            Paragraph(
                f"One user: bound by reading {format_bytes(here.bandwidth)}/s, with a full and an empty cache. Users: "
                "in a quarter of the memory, which the cache has by default, and in all; together they get at most "
                f"{estimate.round_number(plan.tokens_per_second_of_all)} tokens/s."
            ),
        ]


def range_row(name: str, size: Range, written: Callable[[float], str]) -> tuple[str, str, str]:
    return name, written(size.low), written(size.high)


def format_seconds(seconds: float) -> str:
    """A time in the unit that suits it: 3.4 hours."""
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= 1.5 * size), UNITS[-1])
    return f"{estimate.round_number(seconds / size)} {unit}"

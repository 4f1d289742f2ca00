"""Figures as ranges: arithmetic, time and money of a training."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.config import ModelConfig, TrainingConfig
from foretell.model.cost import training_flops_per_token
from foretell.model.init import weight_shapes
from foretell.training.optimizer import optimizer_flops_per_step

REPEATED = 4 / 3  # of the operations if the forward pass is computed again: it is a third of forward and backward


@dataclass(frozen=True)
class Range:
    """A planned figure: at least `low`, at most `high`."""

    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        """A figure that is known."""
        return cls(value, value)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Range:
        return Range(self.low * factor, self.high * factor)

    def __truediv__(self, divisor: float) -> Range:
        return self * (1 / divisor)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Cost:
    """Arithmetic, time and money of a training, with the forward pass that checkpointed activations repeat."""

    flops: Range
    seconds: Range
    device_hours: Range
    money: Range | None


def training_flops(config: ModelConfig, training: TrainingConfig, tokens: float, processes: int) -> Range:
    """Operations of a training: with attention over half of the context, as causal kernels do, and over all of it."""
    full = training_flops_per_token(config)
    attention = 12 * config.num_layers * config.num_heads * config.head_width * config.context_length
    steps = tokens / (training.batch_size * config.context_length)
    # Every process updates its copy of the weights (DDP), or its share of them (FSDP)
    times = 1 if training.parallel == "fsdp" else processes
    updates = times * steps * optimizer_flops_per_step(weight_shapes(config), training)
    return Range((full - attention / 2) * tokens + updates, full * tokens + updates)


def training_cost(
    flops: Range, training: TrainingConfig, rate: Range, processes: int, price: float | None = None
) -> Cost:
    """Time and money at a rate in FLOP/s of one device, which counts attention over the whole context.

    flops: of model and optimizer, without a repeated forward pass. price: of one device for an hour.
    """
    repeated = REPEATED if training.checkpoint_activations else 1.0
    work = flops.high * repeated / processes
    seconds = Range(work / rate.high, work / rate.low)
    hours = seconds * (processes / 3600)
    return Cost(flops * repeated, seconds, hours, None if price is None else hours * price)

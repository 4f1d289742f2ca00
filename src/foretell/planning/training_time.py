"""Arithmetic, time and money of a training, as ranges."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.config import ModelConfig, TrainingConfig
from foretell.model.cost import training_flops_per_token
from foretell.model.init import weight_shapes
from foretell.planning.ranges import Range
from foretell.training.optimizer import optimizer_flops_per_step

REPEATED = 4 / 3  # of the operations, where the forward pass is computed again: it is a third of forward and backward


@dataclass(frozen=True)
class Cost:
    """What a training takes. flops: of the model and the optimizer; the time also has those of a repeated pass."""

    flops: Range
    seconds: Range
    device_hours: Range
    money: Range | None


def training_flops(config: ModelConfig, training: TrainingConfig, tokens: float, processes: int) -> Range:
    """Operations of a training: attention over half of the context, as causal kernels do, and over all of it."""
    full = training_flops_per_token(config)
    attention = 12 * config.num_layers * config.num_heads * config.head_width * config.context_length
    steps = tokens / (training.batch_size * config.context_length)
    # Copies of the weights (DDP) are updated by every process, shards (FSDP) by one each
    times = 1 if training.parallel == "fsdp" else processes
    products = times * steps * optimizer_flops_per_step(weight_shapes(config), training)
    return Range((full - attention / 2) * tokens + products, full * tokens + products)


def training_cost(
    flops: Range, training: TrainingConfig, rate: Range, processes: int, price: float | None = None
) -> Cost:
    """Time and money at a rate in FLOP/s of one device, which counts attention over the whole context.

    price: of one device for an hour.
    """
    repeated = REPEATED if training.checkpoint_activations else 1.0
    work = flops.high * repeated / processes
    seconds = Range(work / rate.high, work / rate.low)
    hours = seconds * (processes / 3600)
    return Cost(flops, seconds, hours, None if price is None else hours * price)

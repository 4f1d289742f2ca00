"""One optimizer step: forward and backward over the micro-batches, clip, update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import nn

from foretell.config import TrainingConfig
from foretell.device import autocast
from foretell.errors import DivergedError, TrainingError
from foretell.model.dropout import DropoutHost


class TrainingBatch(Protocol):
    """What a training step needs from a batch; the objective of a task knows the rest of it."""

    @property
    def count(self) -> float:
        """How many targets count in the loss."""
        ...

    def __len__(self) -> int:
        """Rows."""
        ...

    def rows(self, first: int, last: int) -> Self: ...

    def to(self, device: torch.device | str) -> Self: ...


AnyBatch = TypeVar("AnyBatch", bound=TrainingBatch)


@dataclass(frozen=True)
class StepResult:
    """Mean loss over the step's targets in nats, the gradient's norm before clipping, and the number of targets."""

    loss: float
    gradient_norm: float
    count: int


def training_step(
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: TrainingBatch,
    step: int,
    config: TrainingConfig,
    dtype: torch.dtype = torch.float32,
) -> StepResult:
    """Update the weights once. The gradient is the same for any number of micro-batches.

    Matrix products run in `dtype`; weights, gradients and the optimizer stay in float32. Non-finite losses and
    gradients are a `DivergedError`, raised before any weight is updated.
    """
    count = batch.count  # of the whole batch, so that micro-batches with fewer targets weigh less
    if count == 0:
        raise TrainingError(
            f"step {step + 1}: no token of the batch has a successor to learn; the documents are too short"
        )
    device = next(objective.parameters()).device
    total = 0.0
    for first_row, part in iter_micro_batches(batch, config.gradient_accumulation_steps):
        seed_dropout(objective, config.seed, step, first_row)
        with autocast(device, dtype):
            loss = objective(part)
        (loss.sum / count).backward()
        total += float(loss.sum.detach())
    norm = clip_gradient(objective, config.clip_norm)
    if not (math.isfinite(total) and math.isfinite(norm)):
        optimizer.zero_grad(set_to_none=True)
        raise not_finite(total, norm, step)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(total / count, norm, int(count))


def iter_micro_batches(batch: AnyBatch, parts: int) -> Iterator[tuple[int, AnyBatch]]:
    """The batch in equal parts, each with the index of its first row."""
    rows = len(batch) // parts
    for first in range(0, len(batch), rows):
        yield first, batch.rows(first, first + rows)


def seed_dropout(objective: nn.Module, seed: int, step: int, first_row: int) -> None:
    """Set the counters that the dropout masks of the next forward pass depend on."""
    for module in objective.modules():
        if isinstance(module, DropoutHost):
            rng = module.dropout_rng
            rng.seed, rng.step, rng.first_row = seed, step, first_row


def clip_gradient(model: nn.Module, limit: float | None) -> float:
    """Scale the gradient down to norm `limit` where it is longer (Pascanu et al. 2013); returns the norm before."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit))


def not_finite(loss: float, norm: float, step: int) -> DivergedError:
    """The error for a step whose loss or gradient is infinite or NaN."""
    what, value = ("gradient", norm) if math.isfinite(loss) else ("loss", loss)
    return DivergedError(f"step {step + 1}: the {what} is {value}, and no weight was changed by it")

"""One optimizer step: forward and backward over the micro-batches, clip, update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from foretell.config import TrainingConfig
from foretell.data.batch import Batch
from foretell.errors import DivergedError, TrainingError
from foretell.training.objective import Objective


@dataclass(frozen=True)
class StepResult:
    """Mean loss over the step's targets in nats, the gradient's norm before clipping, and the number of targets."""

    loss: float
    gradient_norm: float
    count: int


def training_step(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    step: int,
    config: TrainingConfig,
    dtype: torch.dtype = torch.float32,
) -> StepResult:
    """Update the weights once; however many micro-batches the batch is cut into, the gradient is the same.

    Matrix products run in `dtype`; weights, gradients and the optimizer stay in float32. A loss or gradient that is not
    finite is a `DivergedError` before any weight has changed.
    """
    count = batch.count  # of the whole batch, so that micro-batches with fewer targets weigh less
    if count == 0:
        raise TrainingError(
            f"step {step + 1}: no token of the batch has a successor to learn; the documents are too short"
        )
    total = 0.0
    for first_row, part in iter_micro_batches(batch, config.accumulation):
        draws = objective.decoder.dropout_rng
        draws.seed, draws.step, draws.first_row = config.seed, step, first_row
        with torch.autocast(part.ids.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
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


def iter_micro_batches(batch: Batch, accumulation: int) -> Iterator[tuple[int, Batch]]:
    """The batch in equal parts, each with the number of its first row."""
    rows = len(batch.ids) // accumulation
    for first in range(0, len(batch.ids), rows):
        yield first, batch.rows(first, first + rows)


def clip_gradient(model: torch.nn.Module, limit: float | None) -> float:
    """Scale the gradient down to norm `limit` where it is longer (Pascanu et al. 2013); returns the norm before."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit))


def not_finite(loss: float, norm: float, step: int) -> DivergedError:
    """The error for a step that would have carried an infinity, or what is not a number, into the weights."""
    what, value = ("gradient", norm) if math.isfinite(loss) else ("loss", loss)
    return DivergedError(f"step {step + 1}: the {what} is {value}, and no weight was changed by it")

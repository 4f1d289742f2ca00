"""One optimizer step: forward and backward for the micro-batches, gradient clipping, update.

On a GPU a step only queues its work. Meanwhile the host prepares the next batch; it waits when it reads the loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from foretell.config.training import TrainingConfig
from foretell.distributed.placement import gradients_summed, whole
from foretell.distributed.world import ALONE, World
from foretell.errors import DivergedError, TrainingError
from foretell.model.dropout import Dropout, DropoutHost
from foretell.system.device import autocast
from foretell.training.side_by_side import add_gradients, workers_for


class TrainingBatch(Protocol):
    """The methods of a batch that a training step calls; the rest is for the task's objective."""

    @property
    def count(self) -> float:
        """The number of targets in the loss."""
        ...

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads, without padding."""
        ...

    def __len__(self) -> int: ...

    def rows(self, first: int, last: int, stride: int = 1) -> Self: ...

    def to(self, device: torch.device | str) -> Self: ...


AnyBatch = TypeVar("AnyBatch", bound=TrainingBatch)


@dataclass(frozen=True, eq=False)
class StepResult:
    """The loss and gradient norm of a step, counted from 0. Reading either waits for the device.

    count: the number of targets. tokens: the number of tokens that the model read. figures (M + 1,): the summed loss of
    each of M micro-batches in nats, then the norm of the gradient before clipping. Reading raises a `DivergedError` if
    any of them is not finite.
    """

    step: int
    count: float
    tokens: int
    figures: Tensor

    @property
    def loss(self) -> float:
        """The mean over the step's targets, in nats."""
        return self._values[0] / self.count

    @property
    def gradient_norm(self) -> float:
        """Before clipping."""
        return self._values[1]

    @cached_property
    def _values(self) -> tuple[float, float]:
        *losses, norm = self.figures.tolist()
        total = sum(losses)
        if not (math.isfinite(total) and math.isfinite(norm)):
            what, value = ("gradient", norm) if math.isfinite(total) else ("loss", total)
            raise DivergedError(f"step {self.step + 1}: the {what} is {value}, so no weight was changed")
        return total, norm


def training_step(
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: TrainingBatch,
    step: int,
    config: TrainingConfig,
    dtype: torch.dtype = torch.float32,
    world: World = ALONE,
) -> StepResult:
    """Update the weights once. The gradient does not depend on the number of micro-batches and processes.

    `batch` has this process's rows of the global batch: `world.rank`, and every `world.size`-th row after it.

    Matrix products run in `dtype`; weights, gradients and the optimizer stay in float32. Non-finite losses and
    gradients never update the weights: they raise a `DivergedError`. On a GPU, the optimizer of `make_optimizer` skips
    that step and all later ones, and the error is raised when the result is read.
    """
    count = world.total(batch.count)  # targets of the global batch, so that each target has the same weight
    if count == 0:
        raise TrainingError(
            f"step {step + 1}: no token of the batch has a next token to learn; the documents are too short"
        )
    device = next(objective.parameters()).device

    def loss_of(rows: TrainingBatch, first_row: int, stride: int = 1) -> Tensor:
        """The summed loss of rows first_row, first_row + stride, ... of the batch."""
        first, apart = world.rank + first_row * world.size, stride * world.size
        seed_dropout(objective, config.seed, step, first, len(rows), apart)
        with autocast(device, dtype):
            return objective(rows.to(device)).sum

    losses: list[Tensor] = []
    parts, tokens = config.gradient_accumulation_steps, int(world.total(batch.tokens))
    workers = workers_for(objective, len(batch) // parts, tokens // parts, device) if world.size == 1 else 1
    for first_row, part in iter_micro_batches(batch, parts):
        if workers > 1:
            shares = [(part.rows(share, len(part), workers), first_row + share, workers) for share in range(workers)]
            losses.append(add_gradients(objective, [partial(loss_of, *share) for share in shares], count))
        else:
            with gradients_summed(objective, len(losses) + 1 == parts):
                loss = loss_of(part, first_row)
                (loss / count * world.size).backward()  # torch divides the sum over the processes by their number
            losses.append(loss.detach())
    norm = clip_gradient(objective, config.clip_norm)
    result = StepResult(step, count, tokens, torch.cat([world.sum(torch.stack(losses)), norm[None]]))
    try:
        if not skips_if_not_finite(optimizer, result):
            _ = result.loss
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
    return result


def own_rows(batch: AnyBatch, world: World) -> AnyBatch:
    """The rows of a global batch that this process trains on: `rank`, and every `size`-th row after it."""
    if len(batch) < world.size:
        raise TrainingError(f"a batch of {len(batch)} rows is too small for {world.size} processes; raise --batch-size")
    return batch if world.size == 1 else batch.rows(world.rank, len(batch), world.size)


class SkippingOptimizer(torch.optim.Optimizer):
    """An optimizer whose step has no effect if `skip`, a float32 scalar on the device of its weights, is 1.

    A training step sets `skip` when a loss or gradient is not finite, and it stays set; the host does not wait for
    this. None: every step is taken.
    """

    skip: Tensor | None = None


@contextmanager
def unchanged_where(skip: Tensor | None, tensors: list[Tensor]) -> Iterator[None]:
    """Undo the changes of the block to these tensors if `skip` is 1."""
    if skip is None:
        yield
        return
    before = [tensor.clone() for tensor in tensors]
    yield
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(torch.where(skip > 0, old, tensor))


def skips_if_not_finite(optimizer: torch.optim.Optimizer, result: StepResult) -> bool:
    """Let the optimizer skip this and all later steps if a figure is not finite; False if it cannot."""
    if not isinstance(optimizer, SkippingOptimizer) or optimizer.skip is None:
        return False
    optimizer.skip.clamp_(min=(~result.figures.isfinite().all()).float())
    return True


def iter_micro_batches(batch: AnyBatch, parts: int) -> Iterator[tuple[int, AnyBatch]]:
    """Split the batch into parts whose sizes differ by at most one row; yields (index of the first row, part)."""
    rows = len(batch)
    if rows < parts:
        raise TrainingError(
            f"{rows} rows of this process cannot be cut into {parts} micro-batches; lower "
            "--training.gradient-accumulation-steps, raise --batch-size, or start fewer processes"
        )
    for part in range(parts):
        first, last = rows * part // parts, rows * (part + 1) // parts
        yield first, batch.rows(first, last)


def seed_dropout(objective: nn.Module, seed: int, step: int, first_row: int, rows: int, stride: int = 1) -> None:
    """Set the counters that the dropout masks of the next forward pass depend on, and any keys set in advance.

    The pass covers the global rows first_row, first_row + stride, ...
    """
    modules = list(objective.modules())
    for host in modules:
        if isinstance(host, DropoutHost):
            rng = host.dropout_rng
            rng.seed, rng.step, rng.first_row, rng.row_stride = seed, step, first_row, stride
    for dropout in modules:
        if isinstance(dropout, Dropout) and dropout.keys is not None:
            dropout.keys = dropout.make_keys(rows, dropout.keys.device)


def clip_gradient(model: nn.Module, limit: float | None) -> Tensor:
    """Scale the gradient down to norm `limit` if it is larger (Pascanu et al. 2013); returns the original norm."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = whole(get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None]))
    clip_grads_with_norm_(parameters, float("inf") if limit is None else limit, norm)
    return norm

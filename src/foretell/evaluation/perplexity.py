"""Loss, perplexity and bits per byte of a model over batches of held-out tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import torch
from torch import nn

from foretell.data.batch import Batch
from foretell.device import autocast
from foretell.distributed.world import evaluating_world


@dataclass(frozen=True)
class Evaluation:
    """loss: mean in nats per token. tokens: number of predicted tokens."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp(loss); infinity where that is too large for a float."""
        return perplexity(self.loss)


def perplexity(loss: float) -> float:
    """exp(loss) of a loss in nats per token; infinity where that is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def json_number(value: float) -> float | None:
    """The value; None for one that is not finite, which JSON cannot write."""
    return value if math.isfinite(value) else None


def bits_per_byte(loss: float, tokens: int, text_bytes: int) -> float:
    """A loss in nats per token as bits per byte of UTF-8 text, which does not depend on the tokenizer."""
    return loss / math.log(2) * tokens / text_bytes


@torch.no_grad()
def evaluate(objective: nn.Module, batches: Iterable[Batch], dtype: torch.dtype = torch.float32) -> Evaluation:
    """The mean loss over all targets, weighted by loss_weights, in evaluation mode; the mode is restored afterwards.

    In a block of `evaluations_shared_by`, process r of N scores batches r, r + N, ...; the sums of single batches are
    collected and added in the order of the batches, so that the figure has the bits of one process, the weights equal.
    """
    was_training = objective.training
    objective.eval()
    device = next(iter((*objective.parameters(), *objective.buffers()))).device
    world, remaining = evaluating_world(), iter(batches)
    sums: list[tuple[float, float]] = []  # the summed loss and the number of targets of each batch, 0 of other ranks'
    while group := list(islice(remaining, world.size)):
        # A process without a batch in the last group repeats the first one of it: a pass of shards needs all processes
        batch = group[world.rank] if world.rank < len(group) else group[0]
        with autocast(device, dtype):
            loss = objective(batch.to(device))
        own = float(loss.sum), float(loss.count)
        sums += [own if rank == world.rank else (0.0, 0.0) for rank in range(len(group))]
    objective.train(was_training)
    total, count = 0.0, 0.0
    for batch_total, batch_count in world.sum(torch.tensor(sums, dtype=torch.float64)).tolist():
        total, count = total + batch_total, count + batch_count
    return Evaluation(total / max(count, 1.0), int(count))

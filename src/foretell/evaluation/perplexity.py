"""Loss, perplexity and bits per byte of a model over batches of held-out tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from foretell.data.batch import Batch
from foretell.device import autocast


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
    """The mean loss over all targets, weighted by loss_weights, in evaluation mode; the mode is restored afterwards."""
    was_training = objective.training
    objective.eval()
    device = next(iter((*objective.parameters(), *objective.buffers()))).device
    total, count = 0.0, 0.0
    for batch in batches:
        with autocast(device, dtype):
            loss = objective(batch.to(device))
        total, count = total + float(loss.sum), count + float(loss.count)
    objective.train(was_training)
    return Evaluation(total / max(count, 1.0), int(count))

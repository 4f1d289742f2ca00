"""The loss of batches, as nats per token, perplexity and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import torch
from torch import nn

from foretell.data.batch import Batch
from foretell.distributed.world import evaluating_world
from foretell.system.device import autocast
from foretell.text import Tokenizer

TOKENS_AT_ONCE = 8192  # per batch
FIRST_ROWS = 4  # rows of the first batch for `first_loss`
WITHOUT_BITS = "not of words, among which rare ones are one token"

Progress = Callable[[int, int], None]  # (done, total)


def silent(done: int, total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Evaluation:
    """loss: mean in nats per token. tokens: number of predictions."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return perplexity(self.loss)


def perplexity(loss: float) -> float:
    """exp(loss) for a loss in nats per token; infinity if that is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def json_number(value: float) -> float | None:
    """The value; None if it is not finite, which JSON cannot write."""
    return value if math.isfinite(value) else None


def has_bits_per_byte(tokenizer: Tokenizer) -> bool:
    """False for words: rare ones are one token, and white space is lost, so tokens do not stand for all bytes."""
    return tokenizer.kind != "words"


def bits_per_byte(loss: float, tokens: int, text_bytes: int) -> float:
    """A loss in nats per token as bits per byte of UTF-8 text, which does not depend on the tokenizer."""
    return loss / math.log(2) * tokens / text_bytes


@torch.no_grad()
def evaluate(objective: nn.Module, batches: Iterable[Batch], dtype: torch.dtype = torch.float32) -> Evaluation:
    """The mean loss over all targets, weighted by loss_weights, in evaluation mode; the mode is restored afterwards.

    In a block of `evaluations_shared_by`, process r of N scores batches r, r + N, ...; the batches' sums are added in
    the order of the batches. With equal weights the result is bit-identical to a single process.
    """
    was_training = objective.training
    objective.eval()
    device = next(iter((*objective.parameters(), *objective.buffers()))).device
    world, remaining = evaluating_world(), iter(batches)
    sums: list[tuple[float, float]] = []  # (loss, targets) of each batch, 0 for other ranks
    while group := list(islice(remaining, world.size)):
        # A process without a batch in the last group repeats the first one: a pass over shards needs all processes
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


def first_loss(objective: nn.Module, batch: Batch, dtype: torch.dtype) -> float:
    """The loss of a model before its first step, on a few rows of its first batch."""
    return evaluate(objective, [batch.rows(0, FIRST_ROWS)], dtype).loss


def describe_first_loss(loss: float, vocab_size: int, when: str = "untrained") -> str:
    """A line for the log: the loss, and the loss of a uniform distribution over the vocabulary."""
    return f"{when:<12}loss {loss:.2f}, ln({vocab_size:,}) = {math.log(vocab_size):.2f}"

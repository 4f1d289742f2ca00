"""The logit lens for many points of the stream as arrays: the head's product, and its reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretell.model.cpu_matmul import is_mkl_slow
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.dispatch import ALIGNMENT, plain_form
from foretell.model.kernels import compiled_softmax_sums

# Logits of a product with the head, 32 MiB in float32: 166 rows of GPT-2's vocabulary. The pages of a larger block are
# new in each call, which takes as long as more rows save
LOGITS_AT_ONCE = 2**23
COLUMNS_AT_ONCE = 2**11  # tokens of a product with the head: more take up to a seventh longer with two threads
REDUCED_AT_ONCE = 2**20  # logits, 4 MiB in float32: four passes over more take three times as long, outside the cache
STRIDED_FROM = 2**13  # logits per row from which the top ones are looked for among the largest of each column
COLUMN = 64  # logits of a column
LEAST_LOGPROB = -200.0  # below it, a probability is 0 in float32
COMPILED_FROM = 2**23  # logits: the kernel saves more time than the import of numba takes

# The sums (n,) of `softmax_sums` for logits (n, V), which may be overwritten
SoftmaxSums = Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class LensArrays:
    """The lens at N points of the stream.

    ids, logits and logprobs (N, K) are for the top tokens. target_logprobs and ranks (N,) are for one token per point,
    with rank 0 for the most probable token; without a token they are -infinity and -1. Log-probabilities and entropies
    (N,) are in nats.
    """

    ids: np.ndarray
    logits: np.ndarray
    logprobs: np.ndarray
    target_logprobs: np.ndarray
    ranks: np.ndarray
    entropies: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        """The probabilities (N, K) of the top tokens."""
        return np.exp(self.logprobs)

    @property
    def following(self) -> np.ndarray:
        """The probabilities (N,) of the target tokens, 0 if there is none."""
        return np.exp(self.target_logprobs)


@torch.no_grad()
def read_lens(
    decoder: Decoder, stream: Tensor, vocab_size: int, top: int, targets: Sequence[int] | None = None
) -> LensArrays:
    """The lens of a stream (N, D) over the first `vocab_size` tokens. targets: one id per point, -1 for none.

    Most of the time is the head's product; its logits are reduced while they are in the cache.
    """
    ids = torch.tensor([-1] * len(stream) if targets is None else targets, device=stream.device)
    V = decoder.config.vocab_size
    rows = -(-len(stream) // -(-len(stream) * V // LOGITS_AT_ONCE))  # rows of equal parts
    parts, product, reduced = [], head_product(decoder, rows), max(1, REDUCED_AT_ONCE // V)
    sums_of = fastest_softmax_sums(len(stream) * vocab_size, decoder)
    for some, own in zip(stream.split(rows), ids.split(rows), strict=True):
        logits = product(decoder.trunk.norm(some))[:, :vocab_size]
        precise = torch.promote_types(logits.dtype, torch.float32)
        pairs = zip(logits.split(reduced), own.split(reduced), strict=True)
        parts += [reduce_logits(part.to(precise), target, min(top, vocab_size), sums_of) for part, target in pairs]
    return LensArrays(*(torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)))


def head_product(decoder: Decoder, rows: int) -> Callable[[Tensor], Tensor]:
    """The head, for at most `rows` rows (n, D). A call may overwrite the logits (n, V) of the previous one.

    With GPT-2's 50,257 tokens each row of logits has a different alignment. If the row length is a multiple of
    ALIGNMENT, the product takes two thirds of the time on a CPU.
    """
    head, V = decoder.head, decoder.config.vocab_size
    if plain_form(type(head)) is not TiedHead or head.bias is not None or V % ALIGNMENT == 0 or is_mkl_slow():
        return head
    weight = head.weight
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return head
    aligned = torch.empty(rows, V + -V % ALIGNMENT)[:, :V]
    columns = list(zip(weight.split(COLUMNS_AT_ONCE), aligned.split(COLUMNS_AT_ONCE, 1), strict=True))

    def product(hidden: Tensor) -> Tensor:
        for some, out in columns:
            torch.mm(hidden, some.T, out=out[: len(hidden)])
        return aligned[: len(hidden)]

    return product


def reduce_logits(logits: Tensor, targets: Tensor, top: int, sums_of: SoftmaxSums) -> tuple[Tensor, ...]:
    """The fields of `LensArrays` for logits (n, V), which may be overwritten."""
    values, ids = top_logits(logits, top)
    largest, has_target = values[:, :1], targets >= 0
    target = logits.gather(1, targets.clamp(min=0)[:, None])  # (n, 1)
    total, weighted, above = sums_of(logits, largest, target)  # (n,) each
    entropies = total.log() - weighted / total
    logprobs, target_logprobs = (number - largest - total.log()[:, None] for number in (values, target))
    target_logprobs = target_logprobs[:, 0].masked_fill(~has_target, -torch.inf)
    return ids, values, logprobs, target_logprobs, above.long().masked_fill(~has_target, -1), entropies


def plain_softmax_sums(logits: Tensor, largest: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`softmax_sums` with torch's operations. Overwrites the logits."""
    buffer = torch.empty_like(logits)
    # A bool result and integer sums take three times as long; float32 counts exactly up to 2^24
    above = torch.gt(logits, target, out=buffer).sum(-1)
    below = logits.sub_(largest).clamp_(min=LEAST_LOGPROB)  # -infinity times 0 would be NaN
    odds = torch.exp(below, out=buffer)
    return odds.sum(-1), torch.linalg.vecdot(odds, below), above


def fastest_softmax_sums(num_logits: int, decoder: Decoder) -> SoftmaxSums:
    """The compiled float32 kernel, if it is available and there are many logits on a CPU; else torch's operations."""
    is_suited = num_logits >= COMPILED_FROM and decoder.device.type == "cpu" and decoder.dtype != torch.float64
    return (compiled_softmax_sums() if is_suited else None) or plain_softmax_sums


def top_logits(logits: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` largest logits and their ids, equal to `topk` of logits (n, V), in a quarter of the time.

    They are in the columns (COLUMN logits each, V / COLUMN apart) with the largest maxima.
    """
    n, V = logits.shape
    width = V // COLUMN
    if V < STRIDED_FROM or top > width:
        return tuple(logits.topk(top))
    whole = width * COLUMN
    columns = logits[:, :whole].unflatten(1, (COLUMN, width)).amax(1).topk(top).indices  # (n, top)
    places = torch.arange(0, whole, width, device=logits.device)
    chosen = (columns[:, :, None] + places).flatten(1)  # (n, top * COLUMN)
    ids = torch.cat((chosen, torch.arange(whole, V, device=logits.device).expand(n, -1)), 1)
    best = logits.gather(1, ids).topk(top)
    return best.values, ids.gather(1, best.indices)

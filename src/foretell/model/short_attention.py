"""Attention over short rows, and attention with dropout, for training on a CPU.

torch's fused kernel is designed for long rows. Up to 512 positions, plain matrix products over few enough rows for
their weights to stay in a core's cache take 0.55 of its time for forward and backward (0.35 at 128 positions; 64 rows
of 6 heads of 64 on two Zen 4 cores). They keep the weights for the backward pass; with a causal mask and 256 positions,
3/4 of them. In float32 they take 0.9 of its time there, which is not worth the memory. With a mask tensor, as for
encoders and memories with padding, the fused kernel's backward takes twelve times as long as this one (500 rows of 4
heads of 64, 10 queries and keys).

The fused kernel has no dropout. Here the weights that dropout removes are stored with a minus sign, so one tensor is
both weights and mask. The step-by-step form needs three such tensors. In float32 it takes 1.3 times as long at 256
positions; if freed memory is not kept for reuse, 2.2 times, and 2.7 times at 512 (one Zen 4 core).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from foretell.model.attention import EagerAttention, SDPAttention, per_query_head
from foretell.model.dropout import Dropout
from foretell.model.mask import Mask

MAX_LENGTH = 512  # positions; beyond, the fused kernel is faster
BYTES_AT_ONCE = 2**21  # bytes of weights: the second-level cache of two cores
SHORT = 128  # positions; up to here, computing the scores that a window or document borders hide costs little
QUERIES_AT_ONCE = 128  # with a causal mask; the keys after the last query are left out


class ShortAttention(SDPAttention):
    """`SDPAttention` with the kernel of this file if gradients are needed.

    Causal masks with a window or documents use the fused kernel, unless rows are short.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if query.requires_grad and suits(mask):
            return short_attention(query, key, value, mask)
        return super().forward(query, key, value, mask)


class DropoutAttention(EagerAttention):
    """`EagerAttention` with the kernel of this file if dropout and gradients are needed and no hooks are inside."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        dropout = self.dropout
        is_needed = self.training and query.requires_grad and suits(mask)
        if is_needed and isinstance(dropout, Dropout) and not (dropout._forward_hooks or dropout._forward_pre_hooks):
            return short_attention(query, key, value, mask, dropout)
        return super().forward(query, key, value, mask)


def suits(mask: Mask) -> bool:
    """True for plain causal masks, masks without causality, and any mask over short rows."""
    return mask.is_plain_causal or not mask.causal or mask.num_keys <= SHORT


def short_attention(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: Dropout | None = None) -> Tensor:
    """softmax(Q K' / sqrt(E)) V under a mask, from query (B, H, T, E), key and value (B, G, S, E): (B, H, T, E)."""
    if query.shape[1] > key.shape[1]:
        key, value = per_query_head(key, query), per_query_head(value, query)
    return ShortRowAttention.apply(query, key, value, additive(mask, query), mask.is_plain_causal, dropout)


def additive(mask: Mask, query: Tensor) -> Tensor:
    """The mask as numbers to add to scores, 0 or -infinity: (1, 1, T, S) for all rows, or (B, 1, T, S)."""
    T, S = mask.num_queries, mask.num_keys
    if mask.is_open:
        return query.new_zeros(1, 1, 1, 1).expand(1, 1, T, S)
    if mask.is_plain_causal:
        return torch.full((1, 1, T, S), -torch.inf, dtype=query.dtype).triu(1)
    return torch.zeros(mask.allowed.shape, dtype=query.dtype).masked_fill_(~mask.allowed, -torch.inf)


class ShortRowAttention(torch.autograd.Function):
    """Forward and backward in parts of the batch; the weights are kept for backward."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, is_causal: bool, dropout: Dropout | None
    ) -> Tensor:
        mixed, kept = empty_heads(query), list[Tensor]()
        hidden = hidden if len(hidden) == 1 else hidden.expand(-1, *query.shape[1:3], -1)
        row_keys = None if dropout is None else dropout.row_keys(query)
        ctx.is_causal, ctx.scale = is_causal, 1.0 if dropout is None else 1 / (1 - dropout.rate)
        for part in parts(query, key):
            queries, keys, values = (heads[part].flatten(0, 1) for heads in (query, key, value))  # (N, T or S, E)
            hides = hidden[0] if len(hidden) == 1 else hidden[part].flatten(0, 1)  # (1 or N, T, S)
            signs = None if dropout is None or row_keys is None else part_of_mask(dropout, row_keys, part, query, key)
            outputs = torch.empty_like(queries)
            for chosen, seen in blocks(query, key, is_causal):
                weights = softmax_weights(queries[:, chosen], keys[:, seen], hides[:, chosen, seen])
                kept.append(weights if signs is None else weights.copysign_(signs[:, chosen, seen]))
                outputs[:, chosen] = (weights if signs is None else weights.relu()) @ values[:, seen]
            mixed[part] = outputs.mul_(ctx.scale).view_as(mixed[part])
        ctx.save_for_backward(query, key, value, *kept)
        return mixed

    @staticmethod
    @once_differentiable  # a second derivative would treat the saved tensors as constants
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (d_mixed,) = grad_outputs
        query, key, value, *kept = ctx.saved_tensors
        d_query, d_key, d_value = (empty_heads(heads) for heads in (query, key, value))
        saved, has_dropout = iter(kept), ctx.scale != 1
        for part in parts(query, key):
            queries, keys, values, d_out = (heads[part].flatten(0, 1) for heads in (query, key, value, d_mixed))
            d_out = d_out * ctx.scale
            d_queries, d_keys, d_values = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
            for chosen, seen in blocks(query, key, ctx.is_causal):
                signed = next(saved)
                weights, dropped = (signed.abs(), signed.relu()) if has_dropout else (signed, signed)
                d_values[:, seen].baddbmm_(dropped.mT, d_out[:, chosen])
                d_weights = d_out[:, chosen] @ values[:, seen].mT
                if has_dropout:
                    d_weights = torch.ops.aten.threshold_backward(d_weights, signed, 0)  # 0 where dropped
                d_scaled = torch.ops.aten._softmax_backward_data(d_weights, weights, -1, weights.dtype)
                d_scores = d_scaled.mul_(1 / math.sqrt(queries.shape[-1]))
                d_queries[:, chosen] = d_scores @ keys[:, seen]
                d_keys[:, seen].baddbmm_(d_scores.mT, queries[:, chosen])
            for whole, own in ((d_query, d_queries), (d_key, d_keys), (d_value, d_values)):
                whole[part] = own.view_as(whole[part])
        return d_query, d_key, d_value, None, None, None


def softmax_weights(queries: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
    """The softmax over keys (N, S, E) for queries (N, T, E): (N, T, S). hidden: numbers to add to the scores."""
    return torch.baddbmm(hidden, queries, keys.mT, alpha=1 / math.sqrt(queries.shape[-1])).softmax(-1)


def part_of_mask(dropout: Dropout, row_keys: Tensor, part: tuple[slice, slice], query: Tensor, key: Tensor) -> Tensor:
    """`margins` of the weights of some rows and heads, (N, T, S)."""
    rows, heads = part
    T, S = query.shape[2], key.shape[2]
    margins = dropout.margins(row_keys[rows], (heads.stop - heads.start) * T * S, heads.start * T * S)
    return margins.view(-1, T, S).to(query.dtype)


def parts(query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
    """Ranges of rows, or of a row's heads, whose weights fit in the cache."""
    B, H, T, _ = query.shape
    num_heads = max(1, BYTES_AT_ONCE // (T * key.shape[2] * query.itemsize))
    for row in range(0, B, max(1, num_heads // H)):
        for head in range(0, H, num_heads):
            yield slice(row, min(B, row + max(1, num_heads // H))), slice(head, min(H, head + num_heads))


def blocks(query: Tensor, key: Tensor, is_causal: bool) -> Iterator[tuple[slice, slice]]:
    """Ranges of queries with the keys that they see: all keys, or with a causal mask those up to the last query."""
    T = query.shape[2]
    for first in range(0, T, QUERIES_AT_ONCE if is_causal else T):
        last = min(T, first + QUERIES_AT_ONCE) if is_causal else T
        yield slice(first, last), slice(0, last if is_causal else key.shape[2])


def empty_heads(like: Tensor) -> Tensor:
    """An empty (B, H, T, E) stored as (B, T, H, E), so that merging heads needs no copy."""
    return torch.empty_like(like.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)

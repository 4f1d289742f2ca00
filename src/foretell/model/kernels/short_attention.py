"""Attention over short rows, for training in bfloat16 on a CPU.

torch's fused kernel is made for long rows. Up to 512 positions, plain matrix products over so few rows that their
weights stay in a core's cache take 0.55 of its time for forward and backward (0.35 at 128 positions; measured at 64
rows of 6 heads of 64 on two Zen 4 cores). They keep 2 H T bytes per token and layer for the backward pass. In
float32, and for longer rows, the fused kernel is faster. With a mask tensor, as for encoders and memories with padding,
the fused kernel's backward takes twelve times as long as this one (500 rows of 4 heads of 64, 10 queries and keys).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from foretell.model.attention import SDPAttention
from foretell.model.mask import Mask

MAX_LENGTH = 512  # positions; beyond, the fused kernel is faster
WEIGHTS_AT_ONCE = 2**20  # elements: 2 MiB, the second-level cache of two cores


class ShortAttention(SDPAttention):
    """`SDPAttention` with the kernel of this file where gradients are needed.

    Causal masks with a window or documents are left to the fused kernel.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if query.requires_grad and (mask.is_plain_causal or not mask.causal):
            return short_attention(query, key, value, mask)
        return super().forward(query, key, value, mask)


def short_attention(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """softmax(Q K' / sqrt(E)) V under a mask: (B, H, T, E) and twice (B, G, S, E) to (B, H, T, E)."""
    queries_per_key = query.shape[1] // key.shape[1]
    if queries_per_key > 1:
        key, value = (heads.repeat_interleave(queries_per_key, dim=1) for heads in (key, value))
    return ShortRowAttention.apply(query, key, value, additive(mask, query))


def additive(mask: Mask, query: Tensor) -> Tensor:
    """The mask as numbers to add to scores, 0 or -infinity: (1, T, S) for all rows, or (B, 1, T, S)."""
    T, S = mask.num_queries, mask.num_keys
    if mask.is_open:
        return query.new_zeros(1, 1, 1)
    if mask.is_plain_causal:
        return torch.full((1, T, S), -torch.inf, dtype=query.dtype).triu(1)
    return torch.zeros(mask.allowed.shape, dtype=query.dtype).masked_fill_(~mask.allowed, -torch.inf)


class ShortRowAttention(torch.autograd.Function):
    """Forward and backward over parts of the batch; the weights (B, H, T, S) are kept between them."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Tensor:
        B, H, T, E = query.shape
        S = key.shape[2]
        weights = query.new_empty(B, H, T, S)
        mixed = empty_heads(query)
        for rows in parts(query, S):
            queries, keys, values = (heads[rows].reshape(-1, heads.shape[2], E) for heads in (query, key, value))
            by_row = hidden if hidden.dim() == 3 else hidden[rows].expand(-1, H, T, S).reshape(-1, T, S)
            scaled = torch.baddbmm(by_row, queries, keys.transpose(1, 2), alpha=1 / math.sqrt(E))
            weights[rows] = scaled.softmax(-1).view(-1, H, T, S)
            mixed[rows] = (weights[rows].view(-1, T, S) @ values).view(-1, H, T, E)
        ctx.save_for_backward(query, key, value, weights)
        return mixed

    @staticmethod
    @once_differentiable  # a second derivative would treat what forward saved as constant
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (d_mixed,) = grad_outputs
        query, key, value, weights = ctx.saved_tensors
        S, E = key.shape[2:]
        d_query, d_key, d_value = (empty_heads(heads) for heads in (query, key, value))
        for rows in parts(query, S):
            given = (heads[rows].reshape(-1, heads.shape[2], E) for heads in (query, key, value, d_mixed))
            queries, keys, values, d_out = given
            weight = weights[rows].view(-1, *weights.shape[2:])
            d_value[rows] = (weight.transpose(1, 2) @ d_out).view_as(d_value[rows])
            d_weight = d_out @ values.transpose(1, 2)
            d_scaled = torch.ops.aten._softmax_backward_data(d_weight, weight, -1, weight.dtype)
            d_scores = d_scaled.mul_(1 / math.sqrt(E))
            d_query[rows] = (d_scores @ keys).view_as(d_query[rows])
            d_key[rows] = (d_scores.transpose(1, 2) @ queries).view_as(d_key[rows])
        return d_query, d_key, d_value, None


def parts(query: Tensor, num_keys: int) -> list[slice]:
    """Ranges of rows whose weights together fit the cache."""
    B, H, T, _ = query.shape
    size = max(1, WEIGHTS_AT_ONCE // (H * T * num_keys))
    return [slice(first, first + size) for first in range(0, B, size)]


def empty_heads(like: Tensor) -> Tensor:
    """An empty (B, H, T, E) stored as (B, T, H, E), so that merging heads needs no copy."""
    return torch.empty_like(like.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)

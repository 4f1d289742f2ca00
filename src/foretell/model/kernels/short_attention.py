"""Causal attention over short rows, for training in bfloat16 on a CPU.

torch's fused kernel is made for long rows. Up to 512 positions, plain matrix products over so few rows that their
weights stay in a core's cache take 0.55 of its time for forward and backward (0.35 at 128 positions; measured at 64
rows of 6 heads of 64 on two Zen 4 cores). They keep 2 H T bytes per token and layer for the backward pass. In
float32, and for longer rows, the fused kernel is faster.
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
    """`SDPAttention` with the kernel of this file where gradients are needed and the mask is plain causal."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if query.requires_grad and mask.is_plain_causal:
            return short_causal_attention(query, key, value)
        return super().forward(query, key, value, mask)


def short_causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(Q K' / sqrt(E)) V under a causal mask: (B, H, T, E) and twice (B, G, T, E) to (B, H, T, E)."""
    queries_per_key = query.shape[1] // key.shape[1]
    if queries_per_key > 1:
        key, value = (heads.repeat_interleave(queries_per_key, dim=1) for heads in (key, value))
    return ShortCausalAttention.apply(query, key, value)


class ShortCausalAttention(torch.autograd.Function):
    """Forward and backward over parts of the batch; the weights (B, H, T, T) are kept between them."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        B, H, T, E = query.shape
        future = torch.full((T, T), -torch.inf, dtype=query.dtype).triu(1)
        weights = query.new_empty(B, H, T, T)
        mixed = empty_heads(query)
        for rows in parts(query):
            queries, keys, values = (heads[rows].reshape(-1, T, E) for heads in (query, key, value))
            scaled = torch.baddbmm(future, queries, keys.transpose(1, 2), alpha=1 / math.sqrt(E))
            weights[rows] = scaled.softmax(-1).view(-1, H, T, T)
            mixed[rows] = (weights[rows].view(-1, T, T) @ values).view(-1, H, T, E)
        ctx.save_for_backward(query, key, value, weights)
        return mixed

    @staticmethod
    @once_differentiable  # a second derivative would treat what forward saved as constant
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, ...]:
        (d_mixed,) = grad_outputs
        query, key, value, weights = ctx.saved_tensors
        T, E = query.shape[2:]
        d_query, d_key, d_value = empty_heads(query), empty_heads(query), empty_heads(query)
        for rows in parts(query):
            queries, keys, values, d_out = (heads[rows].reshape(-1, T, E) for heads in (query, key, value, d_mixed))
            weight = weights[rows].view(-1, T, T)
            d_value[rows] = (weight.transpose(1, 2) @ d_out).view_as(d_value[rows])
            d_weight = d_out @ values.transpose(1, 2)
            d_scaled = torch.ops.aten._softmax_backward_data(d_weight, weight, -1, weight.dtype)
            d_scores = d_scaled.mul_(1 / math.sqrt(E))
            d_query[rows] = (d_scores @ keys).view_as(d_query[rows])
            d_key[rows] = (d_scores.transpose(1, 2) @ queries).view_as(d_key[rows])
        return d_query, d_key, d_value


def parts(query: Tensor) -> list[slice]:
    """Ranges of rows whose weights together fit the cache."""
    B, H, T, _ = query.shape
    size = max(1, WEIGHTS_AT_ONCE // (H * T * T))
    return [slice(first, first + size) for first in range(0, B, size)]


def empty_heads(like: Tensor) -> Tensor:
    """An empty (B, H, T, E) stored as (B, T, H, E), so that merging heads needs no copy."""
    return torch.empty_like(like.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)

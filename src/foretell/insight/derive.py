"""Derived values: intermediate results of attention and norms, recomputed from the recorded inputs.

They are computed in float32 or better. The fused kernel also accumulates its scores in float32 for bfloat16 operands,
so these are the closest values to those it used. `weights @ value` equals the core's output within

    ATTENTION_BOUND * epsilon of the core's dtype * max |value| * max(1, max |scaled|)

A score rounded by epsilon times its size changes its weight by the same share, so large scores widen the bound. Over
the tested configurations with large weights the factor was at most 2.3 in float64, 1.7 in float32 and 0.4 in
bfloat16; for the shape of GPT-2 with new weights the difference is below 6e-7 of the largest output in float32, 4e-3
in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from foretell.model.mask import Mask

DerivedFormula = Callable[..., Tensor]
ATTENTION_BOUND = 4


def multiply(query: Tensor, key: Tensor) -> Tensor:
    """Scores Q K': (B, H, T, E) and (B, G, S, E) to (B, H, T, S). Vaswani et al. 2017, equation 1."""
    return precise(query) @ precise(per_query_head(key, query)).transpose(-2, -1)


def scale(scores: Tensor, head_width: int) -> Tensor:
    """Scores divided by sqrt(E), so that their spread does not grow with the head's width (ibid., section 3.2.1)."""
    return scores / math.sqrt(head_width)


def hide(scaled: Tensor, mask: Mask) -> Tensor:
    """-infinity where query t may not see key s."""
    return scaled if mask.is_open else scaled.masked_fill(~mask.allowed, -torch.inf)


def normalize(masked: Tensor) -> Tensor:
    """Softmax over the keys: every row sums to 1."""
    return masked.softmax(dim=-1)


def mix(weights: Tensor, value: Tensor) -> Tensor:
    """The weighted sum of the values: (B, H, T, S) and (B, G, S, E) to (B, H, T, E)."""
    return weights @ per_query_head(value, weights).to(weights.dtype)


def attention_scaled(query: Tensor, key: Tensor) -> Tensor:
    """Scaled scores, (B, H, T, S)."""
    return scale(multiply(query, key), query.shape[-1])


def attention_masked(query: Tensor, key: Tensor, mask: Mask) -> Tensor:
    """Scaled scores with -infinity for hidden keys, (B, H, T, S)."""
    return hide(attention_scaled(query, key), mask)


def attention_weights(query: Tensor, key: Tensor, mask: Mask) -> Tensor:
    """Attention weights, (B, H, T, S), before dropout."""
    return normalize(attention_masked(query, key, mask))


def mean(x: Tensor) -> Tensor:
    """The mean that LayerNorm subtracts, (..., 1). Ba, Kiros, Hinton 2016."""
    return precise(x).mean(dim=-1, keepdim=True)


def variance(x: Tensor) -> Tensor:
    """The variance of LayerNorm, which divides by sqrt(variance + epsilon); over D elements, not D - 1. (..., 1)"""
    return precise(x).var(dim=-1, correction=0, keepdim=True)


def mean_square(x: Tensor) -> Tensor:
    """The mean square of RMSNorm, which divides by sqrt(mean square + epsilon). Zhang and Sennrich 2019. (..., 1)"""
    return precise(x).square().mean(dim=-1, keepdim=True)


def precise(x: Tensor) -> Tensor:
    """The same values in float32 or better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def per_query_head(heads: Tensor, queries: Tensor) -> Tensor:
    """Keys or values (B, G, S, E) repeated for the H query heads, (B, H, S, E)."""
    return heads.repeat_interleave(queries.shape[1] // heads.shape[1], dim=1)


ATTENTION: dict[str, tuple[DerivedFormula, tuple[str, ...]]] = {  # by name: the formula, and the core inputs it reads
    "scores": (multiply, ("query", "key")),
    "scaled": (attention_scaled, ("query", "key")),
    "masked": (attention_masked, ("query", "key", "mask")),
    "weights": (attention_weights, ("query", "key", "mask")),
}
LAYER_NORM: dict[str, DerivedFormula] = {"mean": mean, "variance": variance}
RMS_NORM: dict[str, DerivedFormula] = {"mean_square": mean_square}


class StagedAttention(nn.Module):
    """An attention core that exposes each step of softmax(Q K' / sqrt(E)) V as the output of a submodule.

    Hooks can then record or replace every step. It keeps the weight dropout of the core it replaces.
    """

    def __init__(self, replaced: nn.Module):
        super().__init__()
        self.scores, self.scaled, self.masked, self.weights = (nn.Identity() for _ in ATTENTION)
        self.dropout = dict(replaced.named_children()).get("dropout", nn.Identity())
        self.train(replaced.training)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            scores = self.scores(multiply(query, key))  # (B, H, T, S)
            scaled = self.scaled(scale(scores, query.shape[-1]))
            weights = self.weights(normalize(self.masked(hide(scaled, mask))))
            return mix(self.dropout(weights), value).to(value.dtype)  # (B, H, T, E)

"""Multi-head attention and its two cores: fused, and step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.model.cache import KVView
from foretell.model.description import PARTS, PASSED_BACK, Declared, Derivation, Description
from foretell.model.dropout import make_dropout
from foretell.model.mask import Mask
from foretell.model.norm import make_head_norm
from foretell.model.position import Rotate, Rotation, choose_rotation
from foretell.numerics.norms import in_float32


class Attention(nn.Module):
    """Multi-head attention with H query heads that share G key and value heads.

    Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023.
    """

    description = Description(
        values={
            "query": Declared("B T H*E"),
            "query_norm": Declared("B H T E", ("query",)),
            "key": Declared("B T G*E"),
            "key_norm": Declared("B G T E", ("key",)),
            "value": Declared("B T G*E"),
            "core.query": Declared("B H T E", ("query_norm",), "rotated heads", backward="rotated back"),
            "core.key": Declared("B G S E", ("key_norm",), "rotated heads", backward="rotated back"),
            "core.value": Declared("B G S E", ("value",), "heads", backward=PASSED_BACK),
            "core": Declared("B H T E", ("core.query", "core.key", "core.value")),
            "output": Declared("B T D", ("core",)),
        },
        returns="output",
    )
    operation = PARTS

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        D, E = config.width, config.head_width
        H, G = config.num_heads, config.num_kv_heads
        self.layer, self.window, self.head_width = layer, config.windows[layer], E
        self.query = nn.Linear(D, H * E, bias=config.bias.attention)
        self.key = nn.Linear(D, G * E, bias=config.bias.attention)
        self.value = nn.Linear(D, G * E, bias=config.bias.attention)
        self.query_norm, self.key_norm = make_head_norm(config, H), make_head_norm(config, G)
        self.normed_heads = NORMED_HEADS[config.qk_norm_scope]
        if config.qk_norm_scope == "all_heads":
            self.description = self.description.changed(values=norms_of_all_heads(self.description.values))
        self.rotate: Rotate = choose_rotation(config, layer)
        self.scale_query: ScaleQuery = keep if config.query_factor == 1 else partial(multiply, config.query_factor)
        self.core = EagerAttention(config) if config.dropout.attention > 0 else SDPAttention(config)
        output = nn.Linear(H * E, D, bias=config.bias.attention_output)
        self.output = output if config.attention_output else nn.Identity()

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        source = kv.source(self.layer, x)  # the vectors that become new keys and values; x in self-attention
        query = self.normed_heads(self.query_norm, self.query(x), self.head_width)  # (B, H, T, E)
        key = self.normed_heads(self.key_norm, self.key(source), self.head_width)  # (B, G, T, E)
        value = split_heads(self.value(source), self.head_width)  # (B, G, T, E)
        query, key = self.scale_query(self.rotate(query, rotation)), self.rotate_keys(key, kv, rotation)
        key, value = kv.extend(self.layer, key, value)  # (B, G, S, E)
        mixed = self.core(query, key, value, kv.mask(self.window))  # (B, H, T, E)
        return self.output(mixed.transpose(1, 2).flatten(2))  # (B, T, D)

    def rotate_keys(self, key: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        """Rotate the new keys (B, G, N, E) by their positions; in self-attention these are the queries' positions."""
        return self.rotate(key, rotation)


# Functions with names, since a model is pickled with them
ScaleQuery = Callable[[Tensor], Tensor]


def keep(query: Tensor) -> Tensor:
    return query


def multiply(factor: float, query: Tensor) -> Tensor:
    """The query times a factor, so that a core, which divides scores by sqrt(E), divides them by another number."""
    return query * factor


def split_heads(x: Tensor, head_width: int) -> Tensor:
    return x.unflatten(-1, (-1, head_width)).transpose(1, 2)  # (B, T, H*E) -> (B, H, T, E)


def norm_each_head(norm: nn.Module, x: Tensor, head_width: int) -> Tensor:
    return norm(split_heads(x, head_width))  # (B, H, T, E)


def norm_all_heads(norm: nn.Module, x: Tensor, head_width: int) -> Tensor:
    return split_heads(norm(x), head_width)  # (B, H, T, E)


NORMED_HEADS = {"head": norm_each_head, "all_heads": norm_all_heads}


def norms_of_all_heads(values: Mapping[str, Declared]) -> dict[str, Declared]:
    """The declared values of attention whose norms have the shape of the projections that they read."""
    joint = {f"{name}_norm": replace(values[f"{name}_norm"], dims=values[name].dims) for name in ("query", "key")}
    return {**values, **joint}


# The inner values of a core, which the fused kernel does not return. They are computed in float32 or better, because
# the fused kernel also sums its scores in float32 when its operands are bfloat16.


def attention_scores(query: Tensor, key: Tensor) -> Tensor:
    """Q K': (B, H, T, E) and (B, G, S, E) to (B, H, T, S). Vaswani et al. 2017, equation 1."""
    return in_float32(query) @ in_float32(per_query_head(key, query)).transpose(-2, -1)


def scaled_scores(query: Tensor, key: Tensor) -> Tensor:
    """Scores divided by sqrt(E), so that their variance does not grow with the head's width (ibid., section 3.2.1)."""
    return attention_scores(query, key) / math.sqrt(query.shape[-1])


def masked_scores(query: Tensor, key: Tensor, mask: Mask) -> Tensor:
    """Scaled scores with -infinity where query t may not see key s, (B, H, T, S)."""
    return hide(scaled_scores(query, key), mask)


def attention_weights(query: Tensor, key: Tensor, mask: Mask) -> Tensor:
    """The softmax over the keys, before any dropout: every row sums to 1, (B, H, T, S)."""
    return masked_scores(query, key, mask).softmax(dim=-1)


def hide(scores: Tensor, mask: Mask) -> Tensor:
    """-infinity where a query may not see a key."""
    return scores if mask.is_open else scores.masked_fill(~mask.allowed, -torch.inf)


def per_query_head(heads: Tensor, queries: Tensor) -> Tensor:
    """Keys or values (B, G, S, E) repeated for the H query heads, (B, H, S, E)."""
    return heads.repeat_interleave(queries.shape[1] // heads.shape[1], dim=1)


CORE = Description(
    formula="attention",
    backward="through the attention weights",
    inputs=("query", "key", "value", "mask"),
    derived={
        "scores": Derivation(attention_scores, ("query", "key"), "B H T S", "attention score"),
        "scaled": Derivation(scaled_scores, ("query", "key"), "B H T S", "scaled score"),
        "masked": Derivation(masked_scores, ("query", "key", "mask"), "B H T S", "masked score"),
        "weights": Derivation(attention_weights, ("query", "key", "mask"), "B H T S", "attention weight"),
    },
    saved=("query", "key", "value", "output"),
)


class SDPAttention(nn.Module):
    """softmax(Q K' / sqrt(E)) V without the weights in memory (Dao et al. 2022, FlashAttention)."""

    description = CORE
    operation = "attend"

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.is_grouped = config.num_kv_heads < config.num_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        is_causal = mask.is_plain_causal
        allowed = None if is_causal or mask.is_open else mask.allowed  # (B or 1, 1, T or 1, S)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, is_causal=is_causal, enable_gqa=self.is_grouped
        )  # (B, H, T, E)


class EagerAttention(nn.Module):
    """The same computation step by step, with dropout on the weights."""

    # Kept for the backward pass: at least the T x S numbers that `dropout` declares; without a kernel, three times that
    description = CORE.changed(values={"dropout": Declared("B H T S", ("weights",), "attention weight")})

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.dropout = make_dropout(config.dropout.attention)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        key, value = per_query_head(key, query), per_query_head(value, query)  # (B, H, S, E)
        query = query / math.sqrt(query.shape[-1])  # before the product: T*E divisions per head, not T*S (8% of a step)
        scores = hide(query @ key.transpose(-2, -1), mask)  # (B, H, T, S)
        return self.dropout(scores.softmax(dim=-1)) @ value  # (B, H, T, E)

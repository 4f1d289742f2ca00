"""Attention: every position asks a question of the positions it may see, and takes a mixture of what they offer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.model.cache import KVView
from foretell.model.dropout import make_dropout
from foretell.model.kernels.short_attention import short_causal_attention, suits
from foretell.model.linear import Linear
from foretell.model.mask import Mask
from foretell.model.norm import make_head_norm
from foretell.model.position import ROTATIONS, Rotation


class Attention(nn.Module):
    """Multi-head attention with H query heads that share G key and value heads.

    Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023.
    """

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        D, E = config.width, config.head_width
        H, G = config.num_heads, config.num_kv_heads
        self.layer, self.window, self.head_width = layer, config.windows[layer], E
        self.query = Linear(D, H * E, bias=config.bias.attention)
        self.key = Linear(D, G * E, bias=config.bias.attention)
        self.value = Linear(D, G * E, bias=config.bias.attention)
        self.query_norm, self.key_norm = make_head_norm(config), make_head_norm(config)
        self.rotate = ROTATIONS[config.position == "rotary"][1]
        self.core = CORES[config.dropout.attention > 0](config)
        output = Linear(H * E, D, bias=config.bias.attention_output)
        self.output = output if config.attention_output else nn.Identity()

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        query = self.query_norm(self.split_heads(self.query(x)))  # (B, H, T, E)
        key = self.key_norm(self.split_heads(self.key(x)))  # (B, G, T, E)
        value = self.split_heads(self.value(x))  # (B, G, T, E)
        query, key = self.rotate(query, rotation), self.rotate(key, rotation)
        key, value = kv.extend(self.layer, key, value)  # (B, G, S, E)
        mixed = self.core(query, key, value, kv.mask(self.window))  # (B, H, T, E)
        return self.output(mixed.transpose(1, 2).flatten(2))  # (B, T, D)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # (B, H or G, T, E)


class SDPAttention(nn.Module):
    """softmax(Q K' / sqrt(E)) V without ever holding the weights (Dao et al. 2022, FlashAttention)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.is_grouped = config.num_kv_heads < config.num_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        is_causal = mask.is_plain_causal
        if is_causal and suits(query):
            return short_causal_attention(query, key, value)
        allowed = None if is_causal or mask.is_open else mask.allowed  # (B or 1, 1, T, S)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, is_causal=is_causal, enable_gqa=self.is_grouped
        )  # (B, H, T, E)


class EagerAttention(nn.Module):
    """The same in four steps, for when the weights themselves are dropped out, looked at or replaced."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.queries_per_key = config.num_heads // config.num_kv_heads
        self.dropout = make_dropout(config.dropout.attention)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        key = key.repeat_interleave(self.queries_per_key, dim=1)  # (B, H, S, E)
        value = value.repeat_interleave(self.queries_per_key, dim=1)
        query = query / math.sqrt(query.shape[-1])  # before the product: T*E divisions a head, not T*S (8% of a step)
        scores = query @ key.transpose(-2, -1)  # (B, H, T, S)
        if not mask.is_open:
            scores = scores.masked_fill(~mask.allowed, -torch.inf)
        return self.dropout(scores.softmax(dim=-1)) @ value  # (B, H, T, E)


CORES: dict[bool, type[nn.Module]] = {
    False: SDPAttention,
    True: EagerAttention,
}

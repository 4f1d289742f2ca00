"""Normalisation of a vector to unit scale: LayerNorm, RMSNorm, or none."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config import ModelConfig


class LayerNorm(nn.LayerNorm):
    """Subtract the mean, divide by the standard deviation, scale, shift (Ba, Kiros, Hinton 2016)."""

    def forward(self, input: Tensor) -> Tensor:
        return for_products(super().forward(input))


class RMSNorm(nn.RMSNorm):
    """Divide by the root mean square, scale (Zhang and Sennrich 2019). The scale takes the input's dtype.

    Without that, queries and keys in bfloat16 under autocast miss torch's fused kernel, which wants one dtype for both.
    """

    def forward(self, x: Tensor) -> Tensor:
        return for_products(F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps))


def for_products(x: Tensor) -> Tensor:
    """x in the precision that autocast gives to products: cast here once, not by each layer that reads it."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def make_layer_norm(width: int, epsilon: float, bias: bool) -> nn.Module:
    """With mean and variance (GPT)."""
    return LayerNorm(width, eps=epsilon, bias=bias)


def make_rms_norm(width: int, epsilon: float, bias: bool) -> nn.Module:
    """It has no shift, whatever `bias` says."""
    return RMSNorm(width, eps=epsilon)


def make_no_norm(width: int, epsilon: float, bias: bool) -> nn.Module:
    """The vector as it is."""
    return nn.Identity()


NORMS = {"layernorm": make_layer_norm, "rmsnorm": make_rms_norm, "none": make_no_norm}


def make_norm(config: ModelConfig, width: int) -> nn.Module:
    """The configured norm over the last dimension, of this width."""
    return NORMS[config.norm](width, config.norm_epsilon, config.bias.norm)


def make_head_norm(config: ModelConfig) -> nn.Module:
    """The norm of queries and keys, one head at a time (Henry et al. 2020; Qwen3)."""
    return make_norm(config, config.head_width) if config.qk_norm else nn.Identity()

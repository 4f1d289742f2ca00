"""Normalisation of a vector to unit scale: LayerNorm, RMSNorm, or none."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.model.kernels.rms_norm import rms_norm


class LayerNorm(nn.LayerNorm):
    """Subtract the mean, divide by the standard deviation, scale, shift (Ba, Kiros, Hinton 2016)."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(products_dtype(input))


class RMSNorm(nn.RMSNorm):
    """Divide by the root mean square, scale (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.eps is not None, "make_rms_norm gives it"
        return NORMALISE[x.device.type == "cpu"](x, self.weight, self.eps, products_dtype(x))


def by_torch(x: Tensor, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """RMSNorm where torch has a kernel for it."""
    return F.rms_norm(x, scale.shape, scale.to(x.dtype), epsilon).to(dtype)


NORMALISE: dict[bool, Callable[[Tensor, Tensor, float, torch.dtype], Tensor]] = {True: rms_norm, False: by_torch}


def products_dtype(x: Tensor) -> torch.dtype:
    """The precision that autocast gives to products of x: a norm casts to it once, not each layer that reads it."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


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

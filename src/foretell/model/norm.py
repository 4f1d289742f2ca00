"""Normalisation of a vector to unit scale: LayerNorm, RMSNorm, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.model.description import Derivation, Description


@dataclass(frozen=True)
class FrozenNorm:
    """A norm with its statistics held fixed, which is linear and so can be applied to each part of a vector.

    scale (D,) multiplies each part, after its own mean was subtracted where `centers` is true; `shift` is added once.
    """

    scale: Tensor | float
    centers: bool = False
    shift: Tensor | None = None

    def __call__(self, parts: Tensor) -> Tensor:
        """Parts (N, D) as they are in the normalised vector, without the shift."""
        return (parts - parts.mean(-1, keepdim=True) if self.centers else parts) * self.scale


@runtime_checkable
class Norm(Protocol):
    """A module that is linear once the statistics of its input, the values in its `derived`, are held fixed."""

    def frozen(self, statistics: dict[str, Tensor]) -> FrozenNorm:
        """The norm with the statistics, by name ((1,) each), that it had at one position."""
        ...


def mean(x: Tensor) -> Tensor:
    """What LayerNorm subtracts, (..., 1). Ba, Kiros, Hinton 2016."""
    return in_float32(x).mean(dim=-1, keepdim=True)


def variance(x: Tensor) -> Tensor:
    """LayerNorm divides by sqrt(variance + epsilon); the mean over all D squares, not D - 1. (..., 1)"""
    return in_float32(x).var(dim=-1, correction=0, keepdim=True)


def mean_square(x: Tensor) -> Tensor:
    """RMSNorm divides by sqrt(mean square + epsilon) and subtracts nothing. Zhang and Sennrich 2019. (..., 1)"""
    return in_float32(x).square().mean(dim=-1, keepdim=True)


class LayerNorm(nn.LayerNorm):
    """Subtract the mean, divide by the standard deviation, scale, shift (Ba, Kiros, Hinton 2016)."""

    description = Description(
        formula="layer_norm",
        derived={
            "mean": Derivation(mean, ("x",), "statistic", "mean"),
            "variance": Derivation(variance, ("x",), "statistic", "variance"),
        },
        saved_as_given=("x",),
    )

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(matmul_dtype(input))

    def frozen(self, statistics: dict[str, Tensor]) -> FrozenNorm:
        """The norm with the statistics, by their names in `derived` ((1,) each), that it had at one position."""
        shift = None if self.bias is None else self.bias.detach().double()
        scale = self.weight.detach().double() / torch.sqrt(statistics["variance"].double() + self.eps)
        return FrozenNorm(scale, centers=True, shift=shift)


class RMSNorm(nn.RMSNorm):
    """Divide by the root mean square, scale (Zhang and Sennrich 2019)."""

    description = Description(
        formula="rms_norm",
        derived={"mean_square": Derivation(mean_square, ("x",), "statistic", "mean_square")},
        saved_as_given=("x",),
    )

    @property
    def epsilon(self) -> float:
        assert self.eps is not None, "the configuration always has one"
        return self.eps

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, scale, self.epsilon).to(matmul_dtype(x))

    def frozen(self, statistics: dict[str, Tensor]) -> FrozenNorm:
        """The norm with the statistics, by their names in `derived` ((1,) each), that it had at one position."""
        root = torch.sqrt(statistics["mean_square"].double() + self.epsilon)
        return FrozenNorm(self.weight.detach().double() / root)


def matmul_dtype(x: Tensor) -> torch.dtype:
    """The dtype that autocast gives to matrix products of x: a norm casts to it once, not each layer that reads it."""
    device = x.device.type
    is_autocast = device != "meta" and torch.is_autocast_enabled(device)  # torch refuses to answer for meta tensors
    return torch.get_autocast_dtype(device) if is_autocast else x.dtype


def in_float32(x: Tensor) -> Tensor:
    """The same values in float32, or in the dtype they have if that is more precise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def make_layer_norm(width: int, epsilon: float, bias: bool) -> nn.Module:
    """LayerNorm (GPT)."""
    return LayerNorm(width, eps=epsilon, bias=bias)


def make_rms_norm(width: int, epsilon: float, bias: bool) -> nn.Module:
    """RMSNorm (Llama), which never has a shift."""
    return RMSNorm(width, eps=epsilon)


def make_no_norm(width: int, epsilon: float, bias: bool) -> nn.Module:
    """The identity."""
    return nn.Identity()


NORMS = {"layernorm": make_layer_norm, "rmsnorm": make_rms_norm, "none": make_no_norm}


def make_norm(config: ModelConfig, width: int) -> nn.Module:
    """The configured norm over the last dimension, of this width."""
    return NORMS[config.norm](width, config.norm_epsilon, config.bias.norm)


def make_head_norm(config: ModelConfig) -> nn.Module:
    """The norm of queries and keys, one head at a time (Henry et al. 2020; Qwen3)."""
    return make_norm(config, config.head_width) if config.qk_norm else nn.Identity()

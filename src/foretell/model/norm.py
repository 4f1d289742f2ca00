"""Normalisation of a vector to unit scale: LayerNorm, RMSNorm, or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.model.description import STATISTIC, Derivation, Description


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
        """The norm with the statistics of one position, (1,) each, by their names in `derived`."""
        ...


def mean(x: Tensor) -> Tensor:
    """(..., 1), which LayerNorm subtracts (Ba, Kiros, Hinton 2016)."""
    return in_float32(x).mean(dim=-1, keepdim=True)


def variance(x: Tensor) -> Tensor:
    """(..., 1), the mean over D squares, not D - 1; LayerNorm divides by sqrt(variance + epsilon)."""
    return in_float32(x).var(dim=-1, correction=0, keepdim=True)


def mean_square(x: Tensor) -> Tensor:
    """(..., 1); RMSNorm divides by sqrt(mean square + epsilon) and subtracts nothing (Zhang and Sennrich 2019)."""
    return in_float32(x).square().mean(dim=-1, keepdim=True)


class LayerNorm(nn.LayerNorm):
    """Subtract the mean, divide by the standard deviation, scale, shift (Ba, Kiros, Hinton 2016)."""

    description = Description(
        formula="layer_norm",
        derived={
            "mean": Derivation(mean, ("x",), STATISTIC, "mean"),
            "variance": Derivation(variance, ("x",), STATISTIC, "variance"),
        },
        saved_as_given=("x",),
    )

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(matmul_dtype(input))

    def frozen(self, statistics: dict[str, Tensor]) -> FrozenNorm:
        shift = None if self.bias is None else self.bias.detach().double()
        scale = self.weight.detach().double() / torch.sqrt(statistics["variance"].double() + self.eps)
        return FrozenNorm(scale, centers=True, shift=shift)


class RMSNorm(nn.RMSNorm):
    """Divide by the root mean square, scale (Zhang and Sennrich 2019)."""

    description = Description(
        formula="rms_norm",
        derived={"mean_square": Derivation(mean_square, ("x",), STATISTIC, "mean_square")},
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
        root = torch.sqrt(statistics["mean_square"].double() + self.epsilon)
        return FrozenNorm(self.weight.detach().double() / root)


def matmul_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products of x under autocast: a norm casts to it once, not each layer that reads it."""
    device = x.device.type
    is_autocast = device != "meta" and torch.is_autocast_enabled(device)  # torch refuses to answer for meta tensors
    return torch.get_autocast_dtype(device) if is_autocast else x.dtype


def in_float32(x: Tensor) -> Tensor:
    """x in float32, or in its own dtype if that is more precise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


NORMS: dict[str, Callable[[int, float, bool], nn.Module]] = {  # from width, epsilon, and whether there is a shift
    "layernorm": lambda width, epsilon, bias: LayerNorm(width, eps=epsilon, bias=bias),
    "rmsnorm": lambda width, epsilon, bias: RMSNorm(width, eps=epsilon),
    "none": lambda width, epsilon, bias: nn.Identity(),
}


def make_norm(config: ModelConfig, width: int) -> nn.Module:
    """The configured norm over the last dimension, of this width."""
    return NORMS[config.norm](width, config.norm_epsilon, config.bias.norm)


def make_head_norm(config: ModelConfig) -> nn.Module:
    """The norm of queries and keys, one head at a time (Henry et al. 2020; Qwen3)."""
    return make_norm(config, config.head_width) if config.qk_norm else nn.Identity()

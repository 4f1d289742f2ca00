"""Normalisation layers, defined by the records in `norms.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.model.description import STATISTIC, Derivation, Description
from foretell.numerics import norms
from foretell.numerics.norms import NORMS, in_float32


@dataclass(frozen=True)
class FrozenNorm:
    """A norm with fixed statistics. It is linear, so it can be applied to each part of a sum of vectors.

    If `centers` is true, the mean of each part is subtracted. Then scale (D,) multiplies it. `shift` is added once.
    """

    scale: Tensor | float
    centers: bool = False
    shift: Tensor | None = None

    def __call__(self, parts: Tensor) -> Tensor:
        """The contributions of parts (N, D) to the normalised vector, without the shift."""
        return (parts - parts.mean(-1, keepdim=True) if self.centers else parts) * self.scale


@runtime_checkable
class Norm(Protocol):
    """A module that is linear when the statistics of its input, named in `derived`, are held fixed."""

    def frozen(self, statistics: dict[str, Tensor]) -> FrozenNorm:
        """The norm with the statistics (1,) of one position, given by their names in `derived`."""
        ...


def describe_norm(record: norms.Norm) -> Description:
    derived = {
        name: Derivation(statistic.tensor, ("x",), STATISTIC, name) for name, statistic in record.statistics.items()
    }
    return Description(formula=record.formula, backward=record.backward, derived=derived, saved_as_given=("x",))


class RecordedNorm(nn.Module):
    """A norm with the formula of its record."""

    record: norms.Norm
    weight: Any
    bias: Any
    eps: Any

    def frozen(self, statistics: dict[str, Tensor]) -> FrozenNorm:
        divisor = self.divisor(statistics[self.record.spread].double())
        bias = dict(self.named_parameters()).get("bias")
        shift = None if bias is None else bias.detach().double()
        gain = self.record.weight_offset + self.weight.detach().double()
        return FrozenNorm(gain / divisor, self.record.is_centered, shift)

    def divisor(self, spread: Tensor) -> Tensor:
        return torch.sqrt(spread + self.eps) if self.record.has_root else spread + self.eps


class PlainNorm(RecordedNorm):
    """A norm computed by the formula of its record, step by step."""

    def __init__(self, record: norms.Norm, width: int, epsilon: float, bias: bool):
        super().__init__()
        self.record, self.eps, self.description = record, epsilon, describe_norm(record)
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        spread = self.record.statistics[self.record.spread].tensor(x)
        center = self.record.statistics["mean"].tensor(x) if self.record.is_centered else 0.0
        y = (in_float32(x) - center) / self.divisor(spread) * (self.record.weight_offset + self.weight)
        return (y if self.bias is None else y + self.bias).to(matmul_dtype(x))


class LayerNorm(RecordedNorm, nn.LayerNorm):
    """Subtract the mean, divide by the standard deviation, scale, shift (Ba, Kiros, Hinton 2016)."""

    record = NORMS["layernorm"]
    description = describe_norm(record)
    operation = "norm"

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(matmul_dtype(input))


class RMSNorm(RecordedNorm, nn.RMSNorm):
    """Divide by the root mean square, scale (Zhang and Sennrich 2019)."""

    record = NORMS["rmsnorm"]
    description = describe_norm(record)
    operation = "norm"

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, scale, self.eps).to(matmul_dtype(x))


class OffsetRMSNorm(RMSNorm):
    """RMSNorm by 1 + weight, in float32: in bfloat16 the sum would lose digits of the weight (Gemma)."""

    record = NORMS["rmsnorm_offset"]
    description = describe_norm(record)
    operation = "norm"

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.record.weight_offset + in_float32(self.weight)
        return F.rms_norm(in_float32(x), self.normalized_shape, scale, self.eps).to(matmul_dtype(x))


def matmul_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products of x under autocast: the norm casts once, instead of each layer that reads it."""
    device = x.device.type
    is_autocast = device != "meta" and torch.is_autocast_enabled(device)  # torch refuses to answer for meta tensors
    return torch.get_autocast_dtype(device) if is_autocast else x.dtype


# made from width, epsilon and whether there is a bias; all other norms are a `PlainNorm`
BY_TORCH: dict[str, Callable[[int, float, bool], nn.Module]] = {
    "layernorm": lambda width, epsilon, bias: LayerNorm(width, eps=epsilon, bias=bias),
    "rmsnorm": lambda width, epsilon, bias: RMSNorm(width, eps=epsilon),
    "rmsnorm_offset": lambda width, epsilon, bias: OffsetRMSNorm(width, eps=epsilon),
    "none": lambda width, epsilon, bias: nn.Identity(),
}


def make_norm(config: ModelConfig, width: int) -> nn.Module:
    """The configured norm over the last dimension, of this width."""
    if make := BY_TORCH.get(config.norm):
        return make(width, config.norm_epsilon, config.bias.norm)
    record = NORMS[config.norm]
    return PlainNorm(record, width, config.norm_epsilon, record.has_bias and config.bias.norm)


def make_head_norm(config: ModelConfig, num_heads: int) -> nn.Module:
    """The norm of queries or keys: of one head at a time (Henry et al. 2020; Qwen3) or of all heads (OLMo 2)."""
    heads = num_heads if config.qk_norm_scope == "all_heads" else 1
    return make_norm(config, heads * config.head_width) if config.qk_norm else nn.Identity()

"""Norms: each in torch for the model, in NumPy for the textbook, and as statistics for explanations.

A new one is a record in `NORMS`, and its name in `config/model.py`. Kernels and exports support a subset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Vector = NDArray[np.floating[Any]]

# Phuong and Hutter's Algorithm 6 divides by sqrt(v) alone, which fails for a constant vector; GPT-2 adds this
EPSILON = 1e-5


@dataclass(frozen=True)
class Statistic:
    """One number of a vector x: the mean of terms computed from its elements, or the largest of them.

    tensor: the statistic in torch, (..., D) to (..., 1). columns: in NumPy, x (D,) to columns to show; the last one
    holds the terms. is_centered: the terms are computed from x - mean.
    """

    tensor: Callable[[Tensor], Tensor]
    columns: Callable[[Vector], Mapping[str, Vector]]
    is_centered: bool = False
    is_largest: bool = False


@dataclass(frozen=True)
class Norm:
    """(x - mean) / sqrt(spread + epsilon) * (weight_offset + weight) + bias, for a vector x (D,).

    formula: its name in descriptions. compute: the norm in NumPy, from x, weight, bias, epsilon, in the dtype of x.
    statistics: by name; the last one is the spread, and "mean" is subtracted if it is among them.
    has_root: without it the divisor is spread + epsilon. has_bias: there is a bias if the configuration asks for one.
    backward: the name of its gradient's rule in descriptions; empty without one.
    """

    formula: str
    compute: Callable[[Vector, Vector, Vector | float, float], Vector]
    statistics: Mapping[str, Statistic]
    has_root: bool = True
    has_bias: bool = False
    backward: str = ""
    weight_offset: float = 0.0

    @property
    def is_centered(self) -> bool:
        """True if the mean is subtracted."""
        return "mean" in self.statistics

    @property
    def spread(self) -> str:
        """The name of the statistic that the divisor is computed from."""
        return list(self.statistics)[-1]


def layer_norm(e: Vector, gamma: Vector, beta: Vector | float, epsilon: float = EPSILON) -> Vector:
    """(e - m) / sqrt(v + epsilon) * gamma + beta with mean m and variance v of e (d,).

    Phuong and Hutter 2022, Algorithm 6; Ba, Kiros and Hinton 2016, section 3.
    """
    m = e.mean()
    v = ((e - m) ** 2).mean()
    return (e - m) / math.sqrt(v + epsilon) * gamma + beta


def rms_norm(e: Vector, gamma: Vector, _: Vector | float, epsilon: float = EPSILON) -> Vector:
    """e / sqrt(mean(e^2) + epsilon) * gamma: `layer_norm` with m = beta = 0 (Zhang and Sennrich 2019, section 4)."""
    return e / math.sqrt((e**2).mean() + epsilon) * gamma


def offset_rms_norm(e: Vector, gamma: Vector, _: Vector | float, epsilon: float = EPSILON) -> Vector:
    """`rms_norm` whose scale is 1 + gamma (Gemma)."""
    return rms_norm(e, 1 + gamma, 0.0, epsilon)


def in_float32(x: Tensor) -> Tensor:
    """x in float32, or in its own dtype if that is more precise."""
    return x.float() if x.dtype.itemsize < 4 else x


def mean(x: Tensor) -> Tensor:
    return in_float32(x).mean(dim=-1, keepdim=True)


def variance(x: Tensor) -> Tensor:
    """The mean squared difference from the mean, which divides by D, not by D - 1."""
    return in_float32(x).var(dim=-1, correction=0, keepdim=True)


def mean_square(x: Tensor) -> Tensor:
    return in_float32(x).square().mean(dim=-1, keepdim=True)


def elements(x: Vector) -> Mapping[str, Vector]:
    return {"x": x}


def squares(x: Vector) -> Mapping[str, Vector]:
    return {"x": x, "x²": x**2}


def differences_from_mean(x: Vector) -> Mapping[str, Vector]:
    difference = x - math.fsum(x) / len(x)
    return {"x": x, "x - mean": difference, "(x - mean)²": difference**2}


# No lambdas, with which a model and an explanation could not be pickled
MEAN = Statistic(mean, elements)
VARIANCE = Statistic(variance, differences_from_mean, is_centered=True)
MEAN_SQUARE = Statistic(mean_square, squares)

NORMS = {
    "layernorm": Norm(
        "layer_norm", layer_norm, {"mean": MEAN, "variance": VARIANCE}, has_bias=True, backward="normalised"
    ),
    "rmsnorm": Norm("rms_norm", rms_norm, {"mean_square": MEAN_SQUARE}, backward="normalised"),
    "rmsnorm_offset": Norm(
        "offset_rms_norm", offset_rms_norm, {"mean_square": MEAN_SQUARE}, weight_offset=1.0, backward="normalised"
    ),
}

"""Activation functions: each in torch for the model and in NumPy for the textbook and for explanations.

A new one is a record in `ACTIVATIONS`, its name in `config/model.py`, and its formula in
`insight/explain/explain_activation.py`. Kernels and exports support a subset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

Vector = NDArray[np.floating[Any]]


class SameActivation:
    """Base class of kernels: a subclass of torch's module that computes the same function."""


@dataclass(frozen=True)
class Activation:
    """An activation function in torch and in NumPy.

    module, settings: torch's class and its arguments. compute: f(x) in NumPy, in x's dtype. saved: the tensor that the
    module keeps for the backward pass, as in `Description`.
    """

    module: type[nn.Module]
    compute: Callable[[Vector], Vector]
    saved: str = "x"
    settings: Mapping[str, str] = field(default_factory=dict)

    def make(self) -> nn.Module:
        return self.module(**self.settings)

    def is_made(self, module: nn.Module) -> bool:
        """True for a module that `make` could have returned."""
        is_kernel = isinstance(module, SameActivation) and isinstance(module, self.module)
        is_kind = is_kernel or type(module) is self.module
        return is_kind and all(getattr(module, name) == at for name, at in self.settings.items())


_erf = np.vectorize(math.erf, otypes=[np.float64])


def erf(x: Vector) -> Vector:
    """The error function 2/sqrt(pi) * integral of exp(-t^2) from 0 to x, element by element."""
    return _erf(x).astype(x.dtype)


def normal_distribution(x: Vector) -> Vector:
    """Phi(x) = (1 + erf(x / sqrt(2))) / 2."""
    return (1 + erf(x / math.sqrt(2))) / 2


def gelu_erf(x: Vector) -> Vector:
    """x Phi(x), with the standard normal distribution Phi (Hendrycks and Gimpel 2016, section 2)."""
    return x * normal_distribution(x)


def gelu_tanh(x: Vector) -> Vector:
    """GELU's approximation by tanh, which GPT-2 uses (Hendrycks and Gimpel 2016, section 2)."""
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def relu(x: Vector) -> Vector:
    """max(0, x) (Vaswani et al. 2017, section 3.3)."""
    return np.maximum(x, 0)


def relu2(x: Vector) -> Vector:
    """max(0, x)^2 (So et al. 2021, "Primer")."""
    return relu(x) ** 2


def silu(x: Vector) -> Vector:
    """x / (1 + exp(-x)) (Hendrycks and Gimpel 2016; as Swish, Ramachandran et al. 2017)."""
    # log(1 + exp(-x)) in one step: exp(-x) alone overflows for large negative x
    return x * np.exp(-np.logaddexp(0, -x))


class SquaredRelu(nn.Module):
    """max(0, x)^2."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


ACTIVATIONS = {
    "gelu_tanh": Activation(nn.GELU, gelu_tanh, settings={"approximate": "tanh"}),
    "gelu_erf": Activation(nn.GELU, gelu_erf, settings={"approximate": "none"}),
    "relu": Activation(nn.ReLU, relu, saved="output"),
    "relu2": Activation(SquaredRelu, relu2, saved="inner"),
    "silu": Activation(nn.SiLU, silu),
}


def activation_name(module: nn.Module) -> str:
    """The name of the activation that a module computes; empty for a module of another class."""
    return next((name for name, activation in ACTIVATIONS.items() if activation.is_made(module)), "")

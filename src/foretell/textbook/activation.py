"""The functions that bend, element by element. All keep the dtype of their input."""

from __future__ import annotations

import math

import numpy as np

from foretell.textbook.arrays import Vector

_erf = np.vectorize(math.erf, otypes=[np.float64])


def erf(x: Vector) -> Vector:
    """The error function 2/sqrt(pi) * integral of exp(-t^2) from 0 to x, element by element."""
    return _erf(x).astype(x.dtype)


def gelu_erf(x: Vector) -> Vector:
    """x times the probability that a standard normal number lies below x (Hendrycks and Gimpel 2016, section 2)."""
    return x * normal_distribution(x)


def gelu_erf_derivative(x: Vector) -> Vector:
    """Phi(x) + x phi(x), with the standard normal distribution Phi and its density phi."""
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return normal_distribution(x) + x * density


def normal_distribution(x: Vector) -> Vector:
    """Phi(x) = (1 + erf(x / sqrt(2))) / 2."""
    return (1 + erf(x / math.sqrt(2))) / 2


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

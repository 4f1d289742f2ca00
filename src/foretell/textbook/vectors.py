"""Functions of one vector: softmax, norms, activations. With the array types that the textbook uses.

Each keeps the dtype of its input.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import UsageError

Vector = NDArray[np.floating[Any]]  # (d,)
Matrix = NDArray[np.floating[Any]]  # weights, or a sequence (d, l) with one column per token
BooleanMask = NDArray[np.bool_]  # (l_z, l_x): True where query t_x may see context token t_z

# Phuong and Hutter's Algorithm 6 divides by sqrt(v) alone, which fails for a constant vector; GPT-2 adds this
EPSILON = 1e-5


def softmax(s: Vector) -> Vector:
    """exp(s_i) / sum_j exp(s_j) for a vector of scores; a score of -infinity gets probability 0.

    The largest score is subtracted first, which keeps exp from overflowing and does not change the result.
    """
    exponentials = np.exp(s - s.max())
    return exponentials / exponentials.sum()


def softmax_per_column(S: Matrix) -> Matrix:
    """`softmax` of every column of S."""
    return np.stack([softmax(S[:, t]) for t in range(S.shape[1])], axis=1)


def masked_softmax(S: Matrix, mask: BooleanMask) -> Matrix:
    """The softmax of every column of S (l_z, l_x) over the entries that `mask` allows; the others become 0.

    Raises:
        UsageError: a column has no allowed entry, so it has no softmax.
    """
    if not mask.any(axis=0).all():
        raise UsageError("the mask hides every context token from a query; each query must see at least one")
    return softmax_per_column(np.where(mask, S, -np.inf))


def layer_norm(e: Vector, gamma: Vector, beta: Vector | float, epsilon: float = EPSILON) -> Vector:
    """(e - m) / sqrt(v + epsilon) * gamma + beta with mean m and variance v of e (d,).

    Phuong and Hutter 2022, Algorithm 6; Ba, Kiros and Hinton 2016, section 3.
    """
    m = e.mean()
    v = ((e - m) ** 2).mean()
    return (e - m) / np.sqrt(v + epsilon) * gamma + beta


def layer_norm_per_column(X: Matrix, gamma: Vector, beta: Vector) -> Matrix:
    """`layer_norm` of every token of X (d, l)."""
    return np.stack([layer_norm(X[:, t], gamma, beta) for t in range(X.shape[1])], axis=1)


def rms_norm(e: Vector, gamma: Vector, epsilon: float = EPSILON) -> Vector:
    """e / sqrt(mean(e^2) + epsilon) * gamma: `layer_norm` with m = beta = 0 (Zhang and Sennrich 2019, section 4)."""
    return e / np.sqrt((e**2).mean() + epsilon) * gamma


_erf = np.vectorize(math.erf, otypes=[np.float64])


def erf(x: Vector) -> Vector:
    """The error function 2/sqrt(pi) * integral of exp(-t^2) from 0 to x, element by element."""
    return _erf(x).astype(x.dtype)


def gelu_erf(x: Vector) -> Vector:
    """x Phi(x), with the standard normal distribution Phi (Hendrycks and Gimpel 2016, section 2)."""
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


def relu_derivative(x: Vector) -> Vector:
    """1 where x is above 0, else 0."""
    return (x > 0).astype(x.dtype)


def relu2(x: Vector) -> Vector:
    """max(0, x)^2 (So et al. 2021, "Primer")."""
    return relu(x) ** 2


def silu(x: Vector) -> Vector:
    """x / (1 + exp(-x)) (Hendrycks and Gimpel 2016; as Swish, Ramachandran et al. 2017)."""
    # log(1 + exp(-x)) in one step: exp(-x) alone overflows for large negative x
    return x * np.exp(-np.logaddexp(0, -x))

"""Normalisation of a token's vector."""

from __future__ import annotations

import numpy as np

from foretell.textbook.arrays import Matrix, Vector

# The paper's algorithm divides by sqrt(v) alone, which a constant vector does not survive; GPT-2 adds this
EPSILON = 1e-5


def layer_norm(e: Vector, gamma: Vector, beta: Vector | float, epsilon: float = EPSILON) -> Vector:
    """(e - m) / sqrt(v + epsilon) * gamma + beta with mean m and variance v of e (d,).

    Phuong and Hutter 2022, Algorithm 6; Ba, Kiros and Hinton 2016, section 3.
    """
    m = e.mean()
    v = ((e - m) ** 2).mean()
    return (e - m) / np.sqrt(v + epsilon) * gamma + beta


def rms_norm(e: Vector, gamma: Vector, epsilon: float = EPSILON) -> Vector:
    """e / sqrt(mean(e^2) + epsilon) * gamma: `layer_norm` with m = beta = 0 (Zhang and Sennrich 2019, section 4)."""
    return e / np.sqrt((e**2).mean() + epsilon) * gamma


def layer_norm_per_column(X: Matrix, gamma: Vector, beta: Vector) -> Matrix:
    """`layer_norm` of every token of X (d, l)."""
    return np.stack([layer_norm(X[:, t], gamma, beta) for t in range(X.shape[1])], axis=1)

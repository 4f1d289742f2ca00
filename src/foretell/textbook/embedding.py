"""Embedding and unembedding (Phuong and Hutter 2022, Algorithms 1, 2 and 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretell.errors import ContextLengthError, UsageError
from foretell.textbook.vectors import Matrix, Vector, softmax


def token_embedding(v: int, W_e: Matrix) -> Vector:
    """Column v of W_e (d_e, N_V), the vector of token v (Phuong and Hutter 2022, Algorithm 1).

    Raises:
        UsageError: v is not in the vocabulary.
    """
    check_token(v, W_e.shape[1])
    return W_e[:, v]


def positional_embedding(t: int, W_p: Matrix) -> Vector:
    """Column t of W_p (d_e, l_max), the learned vector of position t (Phuong and Hutter 2022, Algorithm 2).

    Raises:
        ContextLengthError: t is l_max or more.
    """
    if t >= W_p.shape[1]:
        raise ContextLengthError(f"position {t} does not fit a context of {W_p.shape[1]}")
    return W_p[:, t]


def sinusoidal_encoding(t: int, d_e: int) -> Vector:
    """The fixed vector (d_e,) of position t: PE(t, 2i) = sin(t / 10000^(2i/d_e)), PE(t, 2i+1) = cos of the same.

    Vaswani et al. 2017, section 3.5.
    """
    even = np.arange(0, d_e, 2)
    angles = t / 10_000 ** (even / d_e)
    encoding = np.empty(d_e)
    encoding[0::2], encoding[1::2] = np.sin(angles), np.cos(angles[: d_e // 2])
    return encoding


def embed(x: Sequence[int], W_e: Matrix, W_p: Matrix) -> Matrix:
    """X = [e_1, ..., e_l] (d_e, l) with e_t = W_e[:, x[t]] + W_p[:, t] (Phuong and Hutter 2022, section 5)."""
    return np.stack([token_embedding(v, W_e) + positional_embedding(t, W_p) for t, v in enumerate(x)], axis=1)


def unembedding(e: Vector, W_u: Matrix) -> Vector:
    """softmax(W_u e): the distribution (N_V,) over the vocabulary for the vector e (d_e,), with W_u (N_V, d_e).

    Phuong and Hutter 2022, Algorithm 7.
    """
    return softmax(W_u @ e)


def unembedding_per_column(X: Matrix, W_u: Matrix) -> Matrix:
    """P (N_V, l): `unembedding` of every token of X (d_e, l)."""
    return np.stack([unembedding(X[:, t], W_u) for t in range(X.shape[1])], axis=1)


def check_token(v: int, N_V: int) -> None:
    """Raise a `UsageError` for an id outside the vocabulary; NumPy would read -1 as the last one."""
    if not 0 <= v < N_V:
        raise UsageError(f"token id {v} is not in a vocabulary of {N_V}")

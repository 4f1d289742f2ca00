"""Attention: one query, a sequence of queries, several heads (Phuong and Hutter 2022, Algorithms 3 to 5).

Also the textbook's array types, and softmax and norms, which keep the dtype of their input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import UsageError
from foretell.numerics.norms import layer_norm

Vector = NDArray[np.floating[Any]]  # (d,)
Matrix = NDArray[np.floating[Any]]  # weights, or a sequence (d, l) with one column per token
BooleanMask = NDArray[np.bool_]  # (l_z, l_x): True if query t_x may see context token t_z


@dataclass(frozen=True)
class AttentionParameters:
    """One head (Algorithm 4): W_q (d_attn, d_x), W_k (d_attn, d_z), W_v (d_out, d_z), and a bias each."""

    W_q: Matrix
    b_q: Vector
    W_k: Matrix
    b_k: Vector
    W_v: Matrix
    b_v: Vector


@dataclass(frozen=True)
class MultiHeadParameters:
    """H heads with values of size d_mid, and W_o (d_out, H d_mid), b_o (d_out,) (Algorithm 5)."""

    heads: tuple[AttentionParameters, ...]
    W_o: Matrix
    b_o: Vector


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

    Raises UsageError if a column has no allowed entry, so that it has no softmax.
    """
    if not mask.any(axis=0).all():
        raise UsageError("the mask hides every context token from a query; each query must see at least one")
    return softmax_per_column(np.where(mask, S, -np.inf))


def layer_norm_per_column(X: Matrix, gamma: Vector, beta: Vector) -> Matrix:
    """`layer_norm` of every token of X (d, l)."""
    return np.stack([layer_norm(X[:, t], gamma, beta) for t in range(X.shape[1])], axis=1)


def single_query_attention(e: Vector, context: Sequence[Vector], W: AttentionParameters) -> Vector:
    """The attention output v~ (d_out,) of one token e (d_in,) over its context, vectors e_t (d_in,).

    Phuong and Hutter 2022, Algorithm 3.
    """
    q = W.W_q @ e + W.b_q
    keys = [W.W_k @ e_t + W.b_k for e_t in context]
    values = [W.W_v @ e_t + W.b_v for e_t in context]
    alpha = softmax(associations(q, np.stack(keys, axis=1)) / math.sqrt(len(q)))
    return np.sum([alpha_t * v_t for alpha_t, v_t in zip(alpha, values, strict=True)], axis=0)


def associations(q: Vector, K: Matrix) -> Vector:
    """The dot products q . k_t (l_z,) of a query (d_attn,) with the keys K (d_attn, l_z), unscaled."""
    return np.array([q @ K[:, t] for t in range(K.shape[1])])


def attention(X: Matrix, Z: Matrix, W: AttentionParameters, mask: BooleanMask) -> Matrix:
    """V~ (d_out, l_x): the attention output of each token of X (d_x, l_x) over the context Z (d_z, l_z).

    Phuong and Hutter 2022, Algorithm 4. Self-attention has Z = X. Without a mask this is BERT's attention, with
    `unidirectional_mask` GPT's.
    """
    V = project(W.W_v, W.b_v, Z)
    return V @ attention_weights(X, Z, W, mask)


def attention_weights(X: Matrix, Z: Matrix, W: AttentionParameters, mask: BooleanMask) -> Matrix:
    """softmax(S / sqrt(d_attn)) (l_z, l_x), each column a distribution over the context, with S = K^T Q.

    Phuong and Hutter 2022, Algorithm 4, before the product with the values.
    """
    Q, K = project(W.W_q, W.b_q, X), project(W.W_k, W.b_k, Z)
    S = np.stack([associations(Q[:, t], K) for t in range(Q.shape[1])], axis=1)
    return masked_softmax(S / math.sqrt(Q.shape[0]), mask)


def mh_attention(X: Matrix, Z: Matrix, W: MultiHeadParameters, mask: BooleanMask) -> Matrix:
    """The outputs of all heads, stacked and projected by W_o: (d_out, l_x).

    Phuong and Hutter 2022, Algorithm 5; Vaswani et al. 2017, section 3.2.2.
    """
    Y = np.concatenate([attention(X, Z, head, mask) for head in W.heads])
    return project(W.W_o, W.b_o, Y)


def cross_attention(X: Matrix, Z: Matrix, W: MultiHeadParameters) -> Matrix:
    """Queries from the decoder's X (d_x, l_x), keys and values from the encoder's Z (d_z, l_z), unmasked.

    Phuong and Hutter 2022, section 5 ("cross-attention"); Vaswani et al. 2017, section 3.2.3.
    """
    return mh_attention(X, Z, W, bidirectional_mask(Z.shape[1], X.shape[1]))


def bidirectional_mask(l_z: int, l_x: int) -> BooleanMask:
    """Mask = 1: every query sees the whole context."""
    return np.ones((l_z, l_x), dtype=bool)


def unidirectional_mask(l_x: int) -> BooleanMask:
    """Mask[t_z, t_x] = [t_z <= t_x]: a query sees itself and earlier tokens. Upper triangular in this convention."""
    return np.triu(np.ones((l_x, l_x), dtype=bool))


def project(W: Matrix, b: Vector, X: Matrix) -> Matrix:
    """W X + b 1^T: the same affine map for every column."""
    return W @ X + b[:, None]

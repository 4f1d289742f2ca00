"""Functions of one vector: softmax and norms. With the array types that the textbook uses.

Each keeps the dtype of its input.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import UsageError
from foretell.norms import layer_norm

Vector = NDArray[np.floating[Any]]  # (d,)
Matrix = NDArray[np.floating[Any]]  # weights, or a sequence (d, l) with one column per token
BooleanMask = NDArray[np.bool_]  # (l_z, l_x): True where query t_x may see context token t_z


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


def layer_norm_per_column(X: Matrix, gamma: Vector, beta: Vector) -> Matrix:
    """`layer_norm` of every token of X (d, l)."""
    return np.stack([layer_norm(X[:, t], gamma, beta) for t in range(X.shape[1])], axis=1)

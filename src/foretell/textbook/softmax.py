"""Scores to probabilities."""

from __future__ import annotations

import numpy as np

from foretell.errors import UsageError
from foretell.textbook.arrays import Mask, Matrix, Vector


def softmax(s: Vector) -> Vector:
    """exp(s_i) / sum_j exp(s_j) for a vector of scores; a score of -infinity gets probability 0.

    The largest score is subtracted first, which changes nothing but keeps exp from overflowing.
    """
    exponentials = np.exp(s - s.max())
    return exponentials / exponentials.sum()


def softmax_per_column(S: Matrix) -> Matrix:
    """The softmax of every column."""
    return np.stack([softmax(S[:, t]) for t in range(S.shape[1])], axis=1)


def masked_softmax(S: Matrix, mask: Mask) -> Matrix:
    """The softmax of every column of S (l_z, l_x) over the entries that `mask` allows; the others become 0.

    A column in which nothing is allowed has no softmax: `UsageError`.
    """
    if not mask.any(axis=0).all():
        raise UsageError("the mask hides every context token from a query; each query must see at least one")
    return softmax_per_column(np.where(mask, S, -np.inf))

"""The probability of a sequence: P(x_1 .. x_l) = product over t of P(x_t | x_1 .. x_{t-1})."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from foretell.textbook.arrays import Matrix

NextTokenModel = Callable[[Sequence[int]], Matrix]  # ids (l,) to P (N_V, l), column t for the token after position t


def conditional_log_probability(P: Matrix, x: Sequence[int]) -> float:
    """log P(x[1] .. x[l-1] | x[0]): the sum of log P[x[t+1], t] over a model's output P (N_V, l) for x (l,).

    P(x[0]) is not in the sum. A model's first column already follows x[0], so nothing that it gives out is the
    probability of a first token; that needs a start token in front, see `sequence_log_probability`.
    """
    return sum(float(np.log(P[x[t + 1], t])) for t in range(len(x) - 1))


def sequence_log_probability(x: Sequence[int], bos_token: int, model: NextTokenModel) -> float:
    """log P(x[0] .. x[l-1]) of the whole sequence, by a model that was trained on sequences starting with `bos_token`.

    Phuong and Hutter 2022, sections 3 (sequence modelling) and 4 (bos_token).
    """
    started = [bos_token, *x]
    return conditional_log_probability(model(started), started)

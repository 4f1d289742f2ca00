"""Prompting: the model's own tokens are appended to what it reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretell.errors import UsageError
from foretell.textbook.arrays import Vector
from foretell.textbook.chain_rule import NextTokenModel
from foretell.textbook.softmax import softmax


def d_inference(x: Sequence[int], model: NextTokenModel, l_gen: int, tau: float, rng: np.random.Generator) -> list[int]:
    """The continuation (l_gen,) of a prompt x (l,), each token drawn from q proportional to p^(1/tau).

    Phuong and Hutter 2022, Algorithm 14. `model` is, for one, `partial(d_transformer_gpt2, theta=theta)`.
    """
    sequence = list(x)
    for _ in range(l_gen):
        p = model(sequence)[:, -1]
        q = tempered(p, tau)
        sequence.append(int(rng.choice(len(q), p=q)))
    return sequence[len(x) :]


def tempered(p: Vector, tau: float) -> Vector:
    """p^(1/tau) scaled to sum to 1: tau towards 0 leaves only the likeliest token, tau towards infinity all alike.

    A temperature of 0 or less is a `UsageError`.
    """
    if not tau > 0:
        raise UsageError(f"temperature {tau}: it must be above 0")
    with np.errstate(divide="ignore"):  # log 0 is -infinity, which is what an impossible token should get
        return softmax(np.log(p.astype(np.float64)) / tau)

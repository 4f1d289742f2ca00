"""Generating a continuation of a prompt, or a translation (Phuong and Hutter 2022, Algorithms 14 and 15)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretell.errors import UsageError
from foretell.textbook.encoder_decoder import SequenceToSequenceModel
from foretell.textbook.transformer import NextTokenModel
from foretell.textbook.vectors import Vector, softmax


def d_inference(x: Sequence[int], model: NextTokenModel, l_gen: int, tau: float, rng: np.random.Generator) -> list[int]:
    """The continuation (l_gen,) of a prompt x (l,), each token drawn from q proportional to p^(1/tau).

    Phuong and Hutter 2022, Algorithm 14. `model` is for example `partial(d_transformer_gpt2, theta=theta)`.
    """
    sequence = list(x)
    for _ in range(l_gen):
        p = model(sequence)[:, -1]
        q = tempered(p, tau)
        sequence.append(int(rng.choice(len(q), p=q)))
    return sequence[len(x) :]


def ed_inference(
    z: Sequence[int],
    model: SequenceToSequenceModel,
    ends: tuple[int, int],
    tau: float,
    rng: np.random.Generator,
) -> list[int]:
    """x^ [bos_token, ..., eos_token] for a source z (l_z,): each token is drawn from q proportional to p^(1/tau).

    Phuong and Hutter 2022, Algorithm 15. `model` is for example `partial(ed_transformer, theta=theta)`, and `ends` is
    (bos_token, eos_token).

    Raises:
        ContextLengthError: no eos_token was drawn before the model's context was full.
    """
    bos_token, eos_token = ends
    sequence = [bos_token]
    y = None
    while y != eos_token:
        p = model(z, sequence)[:, -1]
        q = tempered(p, tau)
        y = int(rng.choice(len(q), p=q))
        sequence.append(y)
    return sequence


def tempered(p: Vector, tau: float) -> Vector:
    """p^(1/tau) scaled to sum to 1. As tau goes to 0 the most likely token remains; as it grows, all become equal.

    Raises:
        UsageError: tau is not above 0.
    """
    if not tau > 0:
        raise UsageError(f"temperature {tau}: it must be above 0")
    with np.errstate(divide="ignore"):  # log 0 is -infinity, which softmax turns into probability 0
        return softmax(np.log(p.astype(np.float64)) / tau)

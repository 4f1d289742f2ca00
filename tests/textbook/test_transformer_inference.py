"""Generation by the formal algorithms, with a temperature."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from foretell.errors import ContextLengthError, UsageError
from foretell.textbook.transformer import Hyperparameters, d_inference, d_transformer_gpt2, random_parameters, tempered


def successor(x):
    """A model that gives probability 0.9 to the next number modulo 5, and 0.1 to the one after it."""
    P = np.zeros((5, len(x)))
    for t, v in enumerate(x):
        P[(v + 1) % 5, t], P[(v + 2) % 5, t] = 0.9, 0.1
    return P


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_only_the_continuation_is_returned():
    assert d_inference([1, 2], successor, l_gen=4, tau=0.01, rng=rng()) == [3, 4, 0, 1]


def test_zero_tokens_give_an_empty_continuation():
    assert d_inference([1, 2], successor, l_gen=0, tau=1.0, rng=rng()) == []


def test_draws_follow_the_tempered_distribution():
    draws = [d_inference([0], successor, l_gen=1, tau=2.0, rng=rng(seed))[0] for seed in range(2000)]
    expected = 0.9**0.5 / (0.9**0.5 + 0.1**0.5)
    assert set(draws) == {1, 2}
    assert draws.count(1) / 2000 == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 2000) ** 0.5)


def test_tempered_raises_to_the_power_of_one_over_tau():
    p = np.array([0.5, 0.3, 0.2, 0.0])
    assert tempered(p, 1.0) == pytest.approx(p)
    assert tempered(p, 0.5) == pytest.approx(p**2 / (p**2).sum())
    assert tempered(p, 1e-3) == pytest.approx([1, 0, 0, 0])
    assert tempered(p, 1e6) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=1e-5)


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan")])
def test_a_temperature_of_zero_or_less_is_refused(tau):
    with pytest.raises(UsageError, match="it must be above 0"):
        tempered(np.array([0.5, 0.5]), tau)


def test_a_continuation_beyond_the_context_is_refused():
    theta = random_parameters(Hyperparameters(N_V=5, l_max=4, L=1, H=1, d_e=4, d_mlp=4), rng())
    model = partial(d_transformer_gpt2, theta=theta)
    assert len(d_inference([1, 2], model, l_gen=3, tau=1.0, rng=rng())) == 3  # the last token is never read
    with pytest.raises(ContextLengthError, match="position 4 does not fit a context of 4"):
        d_inference([1, 2], model, l_gen=4, tau=1.0, rng=rng())

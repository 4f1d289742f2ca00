"""The two forms of the decoder-only transformer, the probability of a sequence, and generation.

The lesson on the algorithms compares the forms, their losses and temperatures with the model.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from foretell.errors import ContextLengthError, UsageError
from foretell.numerics.norms import layer_norm, rms_norm
from foretell.textbook.attention import softmax
from foretell.textbook.transformer import (
    DTransformerParameters,
    Hyperparameters,
    combine,
    conditional_log_probability,
    d_inference,
    d_transformer_gpt2,
    d_transformer_overwriting,
    embed,
    positional_embedding,
    random_parameters,
    sinusoidal_encoding,
    tempered,
    token_embedding,
    unembedding,
)

SIZES = Hyperparameters(N_V=5, l_max=6, L=2, H=2, d_e=4, d_mlp=7)
FORMS = {"overwriting": d_transformer_overwriting, "GPT-2": d_transformer_gpt2}
x = [3, 0, 4, 4, 1]


def parameters(sizes: Hyperparameters = SIZES) -> DTransformerParameters:
    """Random parameters, varied so that no bias is 0 and no norm's scale is 1."""
    rng = np.random.default_rng(5)
    return combine(lambda weight: weight + 0.3 * rng.normal(size=weight.shape), random_parameters(sizes, rng))


@pytest.mark.parametrize("form", FORMS)
def test_every_column_is_a_distribution_independent_of_later_tokens(form):
    P = FORMS[form](x, parameters())
    assert P.shape == (5, 5)
    assert P.sum(axis=0) == pytest.approx(1)
    changed = FORMS[form]([*x[:3], 0, 2], parameters())
    assert (changed[:, :3] == P[:, :3]).all()
    assert (changed[:, 3:] != P[:, 3:]).all()


def test_both_forms_agree_when_normalisation_has_no_effect():
    theta = parameters(dataclasses.replace(SIZES, L=1, d_mlp=1))
    silent = combine(np.zeros_like, theta.layers[0])
    layer = dataclasses.replace(silent, gamma_1=np.ones(4), gamma_2=np.ones(4))
    unit = np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    theta = dataclasses.replace(
        theta, W_e=np.tile(unit, SIZES.N_V), W_p=np.zeros((4, SIZES.l_max)), layers=(layer,), beta=np.ones(4)
    )
    assert d_transformer_overwriting(x, theta) == pytest.approx(d_transformer_gpt2(x, theta), rel=1e-4)


def test_with_a_start_token_all_sequences_of_one_length_sum_to_probability_one():
    model = partial(d_transformer_gpt2, theta=parameters())
    pairs = [[first, second] for first in range(5) for second in range(5)]
    assert sum(np.exp(conditional_log_probability(model([2, *pair]), [2, *pair])) for pair in pairs) == pytest.approx(1)


def test_without_a_start_token_the_probabilities_are_conditional_on_the_first_token():
    theta = parameters()
    total = sum(np.exp(conditional_log_probability(d_transformer_gpt2([3, v], theta), [3, v])) for v in range(5))
    assert total == pytest.approx(1)


def test_a_single_token_has_conditional_log_probability_zero():
    assert conditional_log_probability(np.full((5, 1), 0.2), [3]) == 0


def test_softmax_of_large_scores_and_minus_infinity():
    assert softmax(np.array([1e4, 1e4, -np.inf])).tolist() == [0.5, 0.5, 0]


def test_norms_match_torch():
    rng = np.random.default_rng(1)
    e, gamma, beta = rng.normal(size=(3, 7))
    x, scale, shift = (torch.from_numpy(part) for part in (e, gamma, beta))
    assert layer_norm(e, gamma, beta) == pytest.approx(F.layer_norm(x, (7,), scale, shift).numpy())
    assert rms_norm(e, gamma, 0.0) == pytest.approx(F.rms_norm(x, (7,), scale, eps=1e-5).numpy())


def test_layer_norm_of_a_constant_vector_is_its_shift():
    assert layer_norm(np.full(4, 3.0), np.ones(4), np.arange(4.0)).tolist() == [0, 1, 2, 3]


def test_sinusoidal_encoding():
    assert sinusoidal_encoding(0, 4).tolist() == [0, 1, 0, 1]
    expected = [np.sin(3), np.cos(3), np.sin(3 / 100), np.cos(3 / 100)]
    assert sinusoidal_encoding(3, 4) == pytest.approx(expected)


def test_embed_adds_the_columns_of_token_and_position():
    W_e, W_p = np.arange(6.0).reshape(2, 3), np.array([[10.0, 20.0], [30.0, 40.0]])
    assert embed([2, 0], W_e, W_p).T.tolist() == [[2 + 10, 5 + 30], [0 + 20, 3 + 40]]


@pytest.mark.parametrize("token", [-1, 3])
def test_token_embedding_refuses_ids_outside_the_vocabulary(token):
    with pytest.raises(UsageError, match=f"token id {token} is not in a vocabulary of 3"):
        token_embedding(token, np.zeros((2, 3)))


def test_positional_embedding_refuses_positions_outside_the_context():
    with pytest.raises(ContextLengthError, match="position 2 does not fit a context of 2"):
        positional_embedding(2, np.zeros((4, 2)))


def test_unembedding_is_a_softmax_of_the_scores():
    p = unembedding(np.array([1.0, -1.0]), np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]]))
    assert p == pytest.approx(np.exp([1, -1, 0]) / np.exp([1, -1, 0]).sum())


# --- generation ------------------------------------------------------------------------------------------------------


def successor(x):
    """A model that gives probability 0.9 to the next number modulo 5, and 0.1 to the one after it."""
    P = np.zeros((5, len(x)))
    for t, v in enumerate(x):
        P[(v + 1) % 5, t], P[(v + 2) % 5, t] = 0.9, 0.1
    return P


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("l_gen", [0, 4])
def test_only_the_continuation_is_returned(l_gen):
    assert d_inference([1, 2], successor, l_gen, tau=0.01, rng=rng()) == [3, 4, 0, 1][:l_gen]


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

"""The two forms of the decoder-only transformer, and the probability of a sequence."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest

from foretell.config import ModelConfig, make_section
from foretell.lessons.algorithms_decoder import model_weights
from foretell.norms import EPSILON
from foretell.textbook.family import decoder_forward
from foretell.textbook.parameters import DTransformerParameters, Hyperparameters, combine, random_parameters
from foretell.textbook.transformer import (
    conditional_log_probability,
    d_transformer_gpt2,
    d_transformer_overwriting,
    sequence_log_probability,
)
from foretell.textbook.vectors import softmax_per_column

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


def test_the_two_forms_are_different_models():
    difference = np.abs(d_transformer_overwriting(x, parameters()) - d_transformer_gpt2(x, parameters()))
    assert difference.max() > 0.01


def test_both_forms_agree_when_normalisation_has_no_effect():
    theta = parameters(dataclasses.replace(SIZES, L=1, d_mlp=1))
    silent = combine(np.zeros_like, theta.layers[0])
    layer = dataclasses.replace(silent, gamma_1=np.ones(4), gamma_2=np.ones(4))
    unit = np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    theta = dataclasses.replace(
        theta, W_e=np.tile(unit, SIZES.N_V), W_p=np.zeros((4, SIZES.l_max)), layers=(layer,), beta=np.ones(4)
    )
    assert d_transformer_overwriting(x, theta) == pytest.approx(d_transformer_gpt2(x, theta), rel=1e-4)


def test_the_gpt2_form_matches_the_family():
    config = make_section(
        ModelConfig,
        {
            "num_layers": 2,
            "num_heads": 2,
            "width": 4,
            "feedforward_width": 7,
            "context_length": 6,
            "vocab_size": 5,
            "activation": "gelu_erf",
            "norm_epsilon": EPSILON,
            "tie_embeddings": False,
        },
    )
    theta = parameters()
    P = softmax_per_column(decoder_forward(config, model_weights(theta), x).T)
    assert pytest.approx(d_transformer_gpt2(x, theta), rel=1e-12) == P


def test_loss_is_minus_the_log_of_the_targets_probability():
    the, cat, sat = 21, 11987, 5438
    P = np.full((12_000, 3), 0.5)
    P[cat, 0] = 0.0041
    assert -conditional_log_probability(P, [the, cat]) == pytest.approx(-np.log(0.0041))
    one_hot = np.eye(1, 12_000, cat)[0]
    assert -conditional_log_probability(P, [the, cat]) == pytest.approx(-(one_hot * np.log(P[:, 0])).sum())
    assert -conditional_log_probability(P, [the, cat, sat]) == pytest.approx(-np.log(0.0041) - np.log(0.5))


def test_with_a_start_token_all_sequences_of_one_length_sum_to_probability_one():
    model = partial(d_transformer_gpt2, theta=parameters())
    pairs = [[first, second] for first in range(5) for second in range(5)]
    assert sum(np.exp(sequence_log_probability(pair, 2, model)) for pair in pairs) == pytest.approx(1)


def test_without_a_start_token_the_probabilities_are_conditional_on_the_first_token():
    theta = parameters()
    total = sum(np.exp(conditional_log_probability(d_transformer_gpt2([3, v], theta), [3, v])) for v in range(5))
    assert total == pytest.approx(1)


def test_a_single_token_has_conditional_log_probability_zero():
    assert conditional_log_probability(np.full((5, 1), 0.2), [3]) == 0

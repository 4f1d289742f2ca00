"""Softmax, norms and encodings against torch and against known values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from foretell.errors import ContextLengthError, UsageError
from foretell.norms import layer_norm, rms_norm
from foretell.textbook.transformer import (
    embed,
    positional_embedding,
    sinusoidal_encoding,
    token_embedding,
    unembedding,
)
from foretell.textbook.vectors import softmax


def test_softmax_of_large_scores_and_minus_infinity():
    assert softmax(np.array([1e4, 1e4, -np.inf])).tolist() == [0.5, 0.5, 0]


def test_norms_match_torch():
    rng = np.random.default_rng(1)
    e, gamma, beta = rng.normal(size=(3, 7))
    x, scale, shift = (torch.from_numpy(part) for part in (e, gamma, beta))
    assert layer_norm(e, gamma, beta) == pytest.approx(F.layer_norm(x, (7,), scale, shift).numpy())
    assert rms_norm(e, gamma) == pytest.approx(F.rms_norm(x, (7,), scale, eps=1e-5).numpy())


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

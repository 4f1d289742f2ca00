"""The printed numbers of lesson E1, by the formal algorithms and by the family's forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from foretell.config import ModelConfig, make_section
from foretell.lessons.smallest_values import (
    ATTENTION_OUTPUT,
    ATTENTION_WEIGHTS,
    EMBEDDING_SUM,
    PROBABILITIES,
    SCALED_SCORES,
    VALUES,
)
from foretell.textbook.attention import associations, attention, attention_weights, project, unidirectional_mask
from foretell.textbook.embedding import embed
from foretell.textbook.family import decoder_forward
from foretell.textbook.parameters import AttentionParameters
from foretell.textbook.transformer import conditional_log_probability
from foretell.textbook.vectors import Matrix, softmax_per_column

IDS = [0, 1, 2, 3, 4]
SENTENCE = [*IDS, 5]


def seeded_weights() -> dict[str, Matrix]:
    """The weights as the source draws them: the seed is set again before each of three groups of layers.

    In float64: one printed probability is 0.22630851 before rounding, too close to a tie for float32.
    """
    groups = [
        {"embed.token": lambda: nn.Embedding(6, 3), "embed.position": lambda: nn.Embedding(5, 3)},
        {f"trunk.blocks.0.attention.{name}": unbiased for name in ("query", "key", "value")},
        {"head": lambda: nn.Linear(3, 6)},
    ]
    weights = {}
    with torch.random.fork_rng(devices=[]):
        for group in groups:
            torch.manual_seed(42)
            for path, make in group.items():
                for name, weight in make().named_parameters():
                    weights[f"{path}.{name}"] = weight.detach().double().numpy()
    return weights


def unbiased() -> nn.Linear:
    return nn.Linear(3, 3, bias=False)


@pytest.fixture(scope="module")
def weights() -> dict[str, Matrix]:
    return seeded_weights()


@pytest.fixture(scope="module")
def head(weights) -> AttentionParameters:
    W_q, W_k, W_v = (weights[f"trunk.blocks.0.attention.{name}.weight"] for name in ("query", "key", "value"))
    zero = np.zeros(3)
    return AttentionParameters(W_q, zero, W_k, zero, W_v, zero)


@pytest.fixture(scope="module")
def stream(weights) -> Matrix:
    return embed(IDS, weights["embed.token.weight"].T, weights["embed.position.weight"].T)


def rows(columns: Matrix) -> Matrix:
    """One row per token, as the source prints it."""
    return columns.T


def rounds_to(printed: list, places: int = 4):
    """Equal to the last printed decimal."""
    return pytest.approx(np.array(printed), abs=0.5 * 10**-places, rel=0)


def test_printed_sum_of_word_and_position(stream):
    assert rows(stream) == rounds_to(EMBEDDING_SUM)


def test_printed_scaled_scores(stream, head):
    Q, K = project(head.W_q, head.b_q, stream), project(head.W_k, head.b_k, stream)
    scores = np.stack([associations(Q[:, t], K) for t in range(5)])
    assert scores / 3**0.5 == rounds_to(SCALED_SCORES, places=2)


def test_printed_attention_weights_values_and_output(stream, head):
    mask = unidirectional_mask(5)
    assert rows(attention_weights(stream, stream, head, mask)) == rounds_to(ATTENTION_WEIGHTS)
    assert rows(project(head.W_v, head.b_v, stream)) == rounds_to(VALUES)
    assert rows(attention(stream, stream, head, mask)) == rounds_to(ATTENTION_OUTPUT)


def test_printed_probabilities(stream, head, weights):
    scores = project(
        weights["head.weight"], weights["head.bias"], attention(stream, stream, head, unidirectional_mask(5))
    )
    assert rows(softmax_per_column(scores)) == rounds_to(PROBABILITIES, places=6)


def test_loss_is_the_sum_over_the_five_targets():
    P = np.array(PROBABILITIES).T
    expected = -np.log([0.226309, 0.129261, 0.229152, 0.094568, 0.277526]).sum()
    assert -conditional_log_probability(P, SENTENCE) == pytest.approx(expected)


def test_the_family_gives_the_printed_probabilities(weights):
    config = make_section(
        ModelConfig,
        {
            "num_layers": 1,
            "num_heads": 1,
            "width": 3,
            "context_length": 5,
            "vocab_size": 6,
            "norm": "none",
            "feedforward": "none",
            "attention_output": False,
            "attention_residual": False,
            "bias": {"attention": False, "head": True},
            "tie_embeddings": False,
        },
    )
    logits = decoder_forward(config, weights, IDS)
    assert rows(softmax_per_column(logits.T)) == rounds_to(PROBABILITIES, places=6)

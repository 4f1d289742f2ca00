"""The smallest decoder with every number shown (E1), by the formal algorithms and by the family's forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from foretell.config import ModelConfig, make_section
from foretell.textbook.arrays import Matrix
from foretell.textbook.attention import associations, attention, attention_weights, project, unidirectional_mask
from foretell.textbook.chain_rule import conditional_log_probability
from foretell.textbook.embedding import embed
from foretell.textbook.family.decoder import decoder_forward
from foretell.textbook.parameters import AttentionParameters
from foretell.textbook.softmax import softmax_per_column

IDS = [0, 1, 2, 3, 4]
SENTENCE = [*IDS, 5]
# one row a token, as printed
STREAM = [
    [1.5049, 0.1550, -0.8613],
    [0.5909, -1.1096, 0.2877],
    [0.7093, 1.9158, 2.5998],
    [-0.1050, 1.0632, 1.9757],
    [0.2883, 0.5985, -0.1772],
]
SCALED_SCORES = [
    [-0.10, -0.05, 0.45, 0.32, 0.02],
    [0.26, 0.33, -0.07, -0.12, -0.05],
    [-0.36, -0.86, 1.82, 1.22, 0.34],
    [-0.17, -0.50, 0.95, 0.63, 0.20],
    [-0.15, -0.20, 0.30, 0.23, 0.05],
]
WEIGHTS = [
    [1, 0, 0, 0, 0],
    [0.4841, 0.5159, 0, 0, 0],
    [0.0963, 0.0581, 0.8456, 0, 0],
    [0.1430, 0.1026, 0.4381, 0.3163, 0],
    [0.1608, 0.1539, 0.2520, 0.2364, 0.1969],
]
VALUES = [
    [-0.1537, -0.4681, -0.5867],
    [-0.3991, 0.3304, -0.0209],
    [-0.6008, 0.4985, -1.2570],
    [-0.3408, 0.5145, -0.5573],
    [0.0575, -0.2277, -0.2618],
]
OUTPUT = [
    [-0.1537, -0.4681, -0.5867],
    [-0.2803, -0.0562, -0.2948],
    [-0.5461, 0.3957, -1.1207],
    [-0.4339, 0.3481, -0.8130],
    [-0.3068, 0.1780, -0.5976],
]
PROBABILITIES = [
    [0.132031, 0.226309, 0.108338, 0.158296, 0.129722, 0.245304],
    [0.126194, 0.179358, 0.129261, 0.182930, 0.118820, 0.263437],
    [0.152013, 0.130360, 0.104023, 0.229152, 0.085190, 0.299262],
    [0.146018, 0.140654, 0.113094, 0.215067, 0.094568, 0.290599],
    [0.141297, 0.161098, 0.117462, 0.195718, 0.106899, 0.277526],
]


def seeded_weights() -> dict[str, Matrix]:
    """The weights as the source draws them: the seed set again before each of three groups of layers.

    In float64, since one printed probability is 0.22630851 before rounding, too near to a tie for float32.
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
    """One row a token, as the source prints it."""
    return columns.T


def rounds_to(printed: list, places: int = 4):
    """Equal to the last printed decimal."""
    return pytest.approx(np.array(printed), abs=0.5 * 10**-places, rel=0)


def test_the_stream_is_word_plus_position(stream):
    assert rows(stream) == rounds_to(STREAM)


def test_the_scaled_scores_are_the_printed_ones(stream, head):
    Q, K = project(head.W_q, head.b_q, stream), project(head.W_k, head.b_k, stream)
    scores = np.stack([associations(Q[:, t], K) for t in range(5)])
    assert scores / 3**0.5 == rounds_to(SCALED_SCORES, places=2)


def test_the_weights_values_and_output_of_attention_are_the_printed_ones(stream, head):
    mask = unidirectional_mask(5)
    assert rows(attention_weights(stream, stream, head, mask)) == rounds_to(WEIGHTS)
    assert rows(project(head.W_v, head.b_v, stream)) == rounds_to(VALUES)
    assert rows(attention(stream, stream, head, mask)) == rounds_to(OUTPUT)


def test_the_probabilities_are_the_printed_ones(stream, head, weights):
    scores = project(
        weights["head.weight"], weights["head.bias"], attention(stream, stream, head, unidirectional_mask(5))
    )
    assert rows(softmax_per_column(scores)) == rounds_to(PROBABILITIES, places=6)


def test_the_loss_is_the_sum_over_the_five_targets():
    P = np.array(PROBABILITIES).T
    expected = -np.log([0.226309, 0.129261, 0.229152, 0.094568, 0.277526]).sum()
    assert -conditional_log_probability(P, SENTENCE) == pytest.approx(expected)


def test_the_familys_forward_pass_gives_the_same_probabilities(weights):
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

"""Sinusoidal positions equal their formula, and rotary positions depend only on the distance of two tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.model.position import RotaryPosition, SinusoidalPosition, rotate_heads
from tests.model.conftest import AssertSame


def rotary(**changes: Any) -> RotaryPosition:
    sizes = {"num_layers": 1, "num_heads": 1, "width": 16, "context_length": 64, "vocab_size": 5}
    return RotaryPosition(make_section(ModelConfig, {**sizes, "position": "rotary", **changes}))


# --- sinusoids -------------------------------------------------------------------------------------------------------


def test_sinusoids_of_position_0() -> None:
    assert SinusoidalPosition(4)(torch.tensor([[0]])).tolist() == [[[0, 1, 0, 1]]]


def test_sinusoids_equal_their_formula(assert_same: AssertSame) -> None:
    width, positions = 6, [0, 1, 2, 19, 1000]
    expected = [
        [f(position / 10_000 ** (2 * i / width)) for i in range(width // 2) for f in (math.sin, math.cos)]
        for position in positions
    ]
    assert_same(SinusoidalPosition(width)(torch.tensor([positions])), torch.tensor([expected], dtype=torch.float64))


# --- rotations -------------------------------------------------------------------------------------------------------


def rotated(vector: Tensor, position: int, rotary: RotaryPosition) -> Tensor:
    return rotate_heads(vector.view(1, 1, 1, -1), rotary(torch.tensor([[position]]), vector.dtype))[0, 0, 0]


def random_vectors(count: int) -> Tensor:
    return torch.randn(count, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("distance", [0, 1, 7])
def test_rotated_dot_products_are_equal_at_equal_distances(distance: int, assert_same: AssertSame) -> None:
    query, key = random_vectors(2)
    dot_products = [rotated(query, start + distance, rotary()) @ rotated(key, start, rotary()) for start in (0, 3, 40)]
    assert_same(torch.stack(dot_products), dot_products[0].expand(3))


def test_rotated_dot_products_differ_at_different_distances() -> None:
    query, key = random_vectors(2)
    dot_products = torch.stack([rotated(query, distance, rotary()) @ key for distance in range(8)])
    assert len(dot_products.unique()) == 8


def test_position_0_is_not_rotated_and_rotations_keep_the_norm(assert_same: AssertSame) -> None:
    vector = random_vectors(1)[0]
    assert torch.equal(rotated(vector, 0, rotary()), vector)
    assert_same(rotated(vector, 23, rotary()).norm(), vector.norm())


def test_late_positions_stay_distinct_in_bfloat16() -> None:
    cosine, _ = rotary(context_length=4096)(torch.tensor([[4000, 4001]]), torch.bfloat16)
    assert cosine.dtype == torch.float32
    assert not torch.equal(cosine[0, 0, 0], cosine[0, 0, 1])


# --- frequencies, compared to transformers ---------------------------------------------------------------------------


def frequencies(rotary: RotaryPosition) -> Tensor:
    """The angle of each pair at position 1, from its cosine and sine."""
    cosine, sine = rotary(torch.tensor([[1]]), torch.float64)
    return torch.atan2(sine, cosine)[0, 0, 0, : rotary.rotary_width // 2]


def llama_config(parameters: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=16,
        num_attention_heads=1,
        max_position_embeddings=64,
        rope_parameters={"rope_theta": 500.0, **parameters},
    )


def test_frequencies_equal_the_papers_formula(assert_same: AssertSame) -> None:
    expected = torch.tensor([500.0 ** (-2 * pair / 16) for pair in range(8)], dtype=torch.float64)
    assert_same(frequencies(rotary(rope_theta=500)), expected)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"type": "linear", "factor": 4}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "llama3", "factor": 8, "original_context_length": 32, "high_frequency_factor": 3},
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "low_freq_factor": 1.0,
                "high_freq_factor": 3.0,
            },
        ),
    ],
    ids=["linear", "llama3"],
)
def test_scaled_frequencies_equal_transformers(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    expected, scale = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](llama_config(theirs), torch.device("cpu"))
    assert scale == 1
    scaled = frequencies(rotary(rope_theta=500, rope_scaling=ours))
    torch.testing.assert_close(scaled.float(), expected, rtol=1e-6, atol=0)
    assert not torch.allclose(scaled, frequencies(rotary(rope_theta=500)))

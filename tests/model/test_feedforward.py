"""Activations and norms equal their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from foretell.config import ModelConfig, make_section
from foretell.model.feedforward import ACTIVATIONS
from foretell.model.norm import make_norm

AssertSame = Callable[[Tensor, Tensor], None]

POINTS = [-3.0, -0.5, 0.0, 0.5, 3.0]
FORMULAS: dict[str, Callable[[float], float]] = {
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "relu": lambda x: max(0.0, x),
    "relu2": lambda x: max(0.0, x) ** 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_equals_its_formula(name: str, assert_same: AssertSame) -> None:
    expected = torch.tensor([FORMULAS[name](x) for x in POINTS], dtype=torch.float64)
    assert_same(ACTIVATIONS[name].make()(torch.tensor(POINTS, dtype=torch.float64)), expected)


def new_norm(kind: str, width: int, epsilon: float) -> nn.Module:
    sizes = {"num_layers": 1, "num_heads": 1, "width": width, "context_length": 1, "vocab_size": 1}
    return make_norm(make_section(ModelConfig, {**sizes, "norm": kind, "norm_epsilon": epsilon}), width)


def norm_of(kind: str, x: list[float], epsilon: float) -> Tensor:
    return new_norm(kind, len(x), epsilon).double()(torch.tensor(x, dtype=torch.float64))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "layernorm",
            [-1.5 / math.sqrt(1.25 + 0.5), -0.5 / math.sqrt(1.75), 0.5 / math.sqrt(1.75), 1.5 / math.sqrt(1.75)],
        ),
        ("rmsnorm", [x / math.sqrt((1 + 4 + 9 + 16) / 4 + 0.5) for x in (1, 2, 3, 4)]),
        ("none", [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_norm_equals_its_formula(kind: str, expected: list[float], assert_same: AssertSame) -> None:
    assert_same(norm_of(kind, [1, 2, 3, 4], epsilon=0.5), torch.tensor(expected, dtype=torch.float64))


def test_rms_norm_returns_the_dtype_of_its_input() -> None:
    assert new_norm("rmsnorm", 4, 1e-5)(torch.ones(4, dtype=torch.bfloat16)).dtype == torch.bfloat16

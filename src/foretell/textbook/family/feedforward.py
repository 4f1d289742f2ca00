"""The feed-forward layers of the family, each on one vector."""

from __future__ import annotations

from collections.abc import Callable

from foretell.config import ModelConfig
from foretell.textbook.activation import gelu_erf, gelu_tanh, relu, relu2, silu
from foretell.textbook.arrays import Vector
from foretell.textbook.family.weights import Module, linear

ACTIVATIONS: dict[str, Callable[[Vector], Vector]] = {
    "gelu_tanh": gelu_tanh,
    "gelu_erf": gelu_erf,
    "relu": relu,
    "relu2": relu2,
    "silu": silu,
}


def feedforward(config: ModelConfig, module: Module, x: Vector) -> Vector:
    """down(f(up(x))), or gated down(f(gate(x)) * up(x)); x (D,).

    Vaswani et al. 2017, section 3.3; gated: Shazeer 2020, "GLU variants", section 2.
    """
    activation, has_bias = ACTIVATIONS[config.activation], config.bias.feedforward
    up = linear(module / "up", x, has_bias)  # (F,)
    if config.feedforward == "gated":
        return linear(module / "down", activation(linear(module / "gate", x, has_bias)) * up, has_bias)
    return linear(module / "down", activation(up), has_bias)

"""The norms of the family, each on one vector."""

from __future__ import annotations

from foretell.config import ModelConfig
from foretell.textbook.arrays import Vector
from foretell.textbook.family.weights import Module
from foretell.textbook.layer_norm import layer_norm, rms_norm


def normalise(config: ModelConfig, module: Module, x: Vector) -> Vector:
    """x (D,), or one head's query or key (E,), under the configured norm."""
    if config.norm == "none":
        return x
    if config.norm == "rmsnorm":
        return rms_norm(x, module["weight"], config.norm_epsilon)
    return layer_norm(x, module["weight"], module["bias"] if config.bias.norm else 0.0, config.norm_epsilon)

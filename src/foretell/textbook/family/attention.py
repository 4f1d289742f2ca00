"""Attention of the family: H query heads, G key and value heads, windows, norms and rotations of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from foretell.config import ModelConfig
from foretell.textbook.arrays import Matrix, Vector
from foretell.textbook.family.norm import normalise
from foretell.textbook.family.rotary import rotate
from foretell.textbook.family.weights import Module, linear
from foretell.textbook.softmax import softmax


def attention(config: ModelConfig, layer: int, module: Module, stream: Sequence[Vector]) -> list[Vector]:
    """What every position takes from those that it may see: T vectors (D,) to T vectors (D,).

    Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023; windows: Beltagy et al. 2020, section 3.1.
    """
    queries = [placed_heads(config, module, "query", position, x) for position, x in enumerate(stream)]
    keys = np.stack([placed_heads(config, module, "key", position, x) for position, x in enumerate(stream)])
    values = np.stack([split_heads(config, linear(module / "value", x, config.bias.attention)) for x in stream])
    updates = []
    for position, heads in enumerate(queries):
        visible = visible_positions(position, config.windows[layer])
        mixed = [
            single_query(q, keys[visible, group], values[visible, group])
            for q, group in zip(heads, key_heads(config), strict=True)
        ]
        updates.append(output(config, module, np.concatenate(mixed)))
    return updates


def placed_heads(config: ModelConfig, module: Module, name: str, position: int, x: Vector) -> Matrix:
    """The query or key heads (H or G, E) of one position: projected, normalised, rotated."""
    heads = split_heads(config, linear(module / name, x, config.bias.attention))
    if config.qk_norm:
        heads = np.stack([normalise(config, module / f"{name}_norm", head) for head in heads])
    if config.position == "rotary":
        heads = np.stack([rotate(config, position, head) for head in heads])
    return heads


def split_heads(config: ModelConfig, x: Vector) -> Matrix:
    """(H E,) as H rows of E."""
    return x.reshape(-1, config.head_width)


def key_heads(config: ModelConfig) -> list[int]:
    """The key and value head of each query head: neighbours share one."""
    return [head // (config.num_heads // config.num_kv_heads) for head in range(config.num_heads)]


def visible_positions(position: int, window: int | None) -> slice:
    """Itself and what came before, at most `window` positions in all."""
    first = 0 if window is None else max(0, position - window + 1)
    return slice(first, position + 1)


def single_query(query: Vector, keys: Matrix, values: Matrix) -> Vector:
    """softmax(q . k_s / sqrt(E)) over the S visible positions, times their values: (E,), (S, E), (S, E) to (E,)."""
    weights = softmax(keys @ query / math.sqrt(len(query)))
    return weights @ values


def output(config: ModelConfig, module: Module, mixed: Vector) -> Vector:
    """The heads' outputs (H E,), projected to (D,) where the model does so."""
    return linear(module / "output", mixed, config.bias.attention_output) if config.attention_output else mixed

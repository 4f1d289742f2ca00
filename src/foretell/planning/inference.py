"""Generating with a model: bytes of the cache, speed bound by memory, and how many users fit."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.config import ModelConfig
from foretell.generation.engine import MEMORY_SHARE
from foretell.model.cost import cache_bytes_per_token, count_parameters
from foretell.model.paged_cache import POSITIONS_PER_BLOCK
from foretell.planning.ranges import Range


@dataclass(frozen=True)
class Generation:
    """What generating takes on one device."""

    weights: int
    cache_per_token: int
    context: int
    tokens_per_second: Range
    users: Range
    tokens_per_second_of_all: float


def plan_generation(
    config: ModelConfig, element_bytes: int, memory: float, bandwidth: float, peak_flops: float, context: int
) -> Generation:
    """Generation with `context` tokens of cache for each user, on a device.

    A step reads all weights once, and the keys and values of all users. The speed of one user is bound by that: with a
    full cache, and with an empty one. The users fit the share of the memory that the engine takes for its cache by
    default, and all that the weights leave. With all of them, the speed is bound by memory or by arithmetic.
    """
    parameters = count_parameters(config)
    weights, per_token = parameters * element_bytes, cache_bytes_per_token(config, element_bytes)
    cache = context * per_token
    left = max(0.0, memory - weights)
    users = Range(users_in(min(left, memory // MEMORY_SHARE), per_token, context), users_in(left, per_token, context))
    by_memory = users.high * bandwidth / (weights + users.high * cache)
    return Generation(
        weights,
        per_token,
        context,
        Range(bandwidth / (weights + cache), bandwidth / weights),
        users,
        min(by_memory, peak_flops / (2 * parameters)),
    )


def users_in(memory: float, cache_per_token: int, context: int) -> int:
    """How many caches of `context` tokens fit, in whole blocks; one block is for padding."""
    blocks = int(memory // (cache_per_token * POSITIONS_PER_BLOCK)) - 1
    return max(0, blocks // -(-context // POSITIONS_PER_BLOCK))

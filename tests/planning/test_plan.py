"""Generation: the cache as the engine has it, the speed by bandwidth, whole blocks for each user."""

from __future__ import annotations

import pytest

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.generation.engine import bytes_per_block
from foretell.model.init import make_decoder
from foretell.model.paged_cache import POSITIONS_PER_BLOCK
from foretell.planning.plan import Devices, plan_generation, users_in
from foretell.planning.speed import Accelerator
from foretell.weight_shapes import count_parameters

MODEL = make_section(ModelConfig, {"num_layers": 2, "num_heads": 2, "width": 8, "context_length": 64, "vocab_size": 50})


def device(bandwidth: float, peak_flops: float) -> Devices:
    return Devices(Accelerator("small", 1e6, bandwidth, peak_flops, "test"), 1)


def test_the_cache_is_that_of_the_engine() -> None:
    planned = plan_generation(MODEL, device(1e9, 1e12))
    assert planned.cache_per_token == 2 * 2 * 8 * 2
    assert planned.cache_per_token * POSITIONS_PER_BLOCK == bytes_per_block(make_decoder(MODEL, seed=0).bfloat16())


def test_one_user_is_bound_by_reading_weights_and_cache() -> None:
    planned = plan_generation(MODEL, device(1e9, 1e12))
    weights = 2 * count_parameters(MODEL)
    assert planned.tokens_per_second.high == pytest.approx(1e9 / weights)
    assert planned.tokens_per_second.low == pytest.approx(1e9 / (weights + 64 * 64))


def test_all_users_are_bound_by_arithmetic_where_that_is_slower() -> None:
    slow = plan_generation(MODEL, device(1e12, 1e6))
    assert slow.tokens_per_second_of_all == 1e6 / (2 * count_parameters(MODEL))


def test_users_have_whole_blocks_and_one_block_is_padding() -> None:
    block = 128 * POSITIONS_PER_BLOCK
    assert users_in(9 * block, 128, 2 * POSITIONS_PER_BLOCK) == 4
    assert users_in(9 * block - 1, 128, 2 * POSITIONS_PER_BLOCK) == 3
    assert users_in(9 * block, 128, POSITIONS_PER_BLOCK + 1) == 4
    assert users_in(0, 128, 1) == 0

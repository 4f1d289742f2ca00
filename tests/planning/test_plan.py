"""Generation: the cache as the engine has it, and the speed by bandwidth."""

from __future__ import annotations

import pytest

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.weight_shapes import count_parameters
from foretell.generation.engine import bytes_per_block
from foretell.model.init import make_decoder
from foretell.model.paged_cache import POSITIONS_PER_BLOCK
from foretell.planning.plan import Devices, plan_generation
from foretell.planning.speed import Accelerator

MODEL = make_section(ModelConfig, {"num_layers": 2, "num_heads": 2, "width": 8, "context_length": 64, "vocab_size": 50})


DEVICE = Devices(Accelerator("small", memory=1e6, bandwidth=1e9, peak_flops=1e12, source="test"), 1)


def test_the_cache_is_that_of_the_engine() -> None:
    planned = plan_generation(MODEL, DEVICE)
    assert planned.cache_per_token == 2 * 2 * 8 * 2
    assert planned.cache_per_token * POSITIONS_PER_BLOCK == bytes_per_block(make_decoder(MODEL, seed=0).bfloat16())


def test_generation_is_bound_by_reading_weights_and_cache() -> None:
    planned = plan_generation(MODEL, DEVICE)
    weights = 2 * count_parameters(MODEL)
    assert planned.tokens_per_second.high == pytest.approx(1e9 / weights)
    assert planned.tokens_per_second.low == pytest.approx(1e9 / (weights + 64 * 64))

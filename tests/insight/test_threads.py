"""A trace in one thread neither sees nor changes the calls of another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder

CORE = "trunk.blocks.0.attention.core"
SIZES = {"num_layers": 2, "num_heads": 2, "width": 32, "context_length": 16, "vocab_size": 37}


@pytest.fixture
def decoder() -> Decoder:
    return make_decoder(make_section(ModelConfig, SIZES), seed=1).eval().requires_grad_(False)


def in_another_thread(decoder: Decoder, ids: Tensor) -> Tensor:
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(decoder, ids).result()


def test_calls_of_another_thread_are_not_recorded(decoder: Decoder) -> None:
    own, other = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5, 6, 7]])
    with Trace(decoder, ["head", f"{CORE}.weights"]) as trace:
        decoder(own)
        in_another_thread(decoder, other)
    assert trace["head"].shape[1] == 3
    assert trace[f"{CORE}.weights"].shape[-1] == 3


@pytest.mark.parametrize("name", [CORE, f"{CORE}.query", f"{CORE}.scores", f"{CORE}.weights", "embed"])
def test_replaced_values_reach_only_the_calls_of_the_own_thread(decoder: Decoder, name: str) -> None:
    ids = torch.tensor([[1, 2, 3, 4]])
    plain = decoder(ids)
    with Trace(decoder, replace={name: lambda value: 0.5 * value + torch.rand_like(value)}):
        assert not torch.allclose(decoder(ids), plain)
        assert torch.equal(in_another_thread(decoder, ids), plain)
    assert torch.equal(decoder(ids), plain)

"""The fused attention core equals the explicit one, and the explicit one equals the formula."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.model.attention import EagerAttention, SDPAttention
from foretell.model.mask import EMPTY, Mask
from tests.model.conftest import AssertSame

T = S = 6
ROWS, WIDTH = 2, 4
DOCUMENT_IDS = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, EMPTY]])
UNEVEN_KEYS = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, EMPTY, EMPTY, EMPTY]])

MASKS = {
    "causal": Mask(T, S),
    "open": Mask(T, S, causal=False),
    "one query": Mask(1, S),
    "last queries": Mask(3, S),
    "window": Mask(T, S, window=2),
    "one query, window": Mask(1, S, window=3),
    "document ids": Mask(T, S, query_document_ids=DOCUMENT_IDS, key_document_ids=DOCUMENT_IDS),
    "uneven rows": Mask(2, S, query_positions=torch.tensor([[4, 5], [1, 2]]), key_positions=UNEVEN_KEYS),
}


def heads(num_heads: int, length: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, num_heads, length, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def core_inputs(mask: Mask, num_kv_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Mask]:
    query = heads(4, mask.num_queries, 1, dtype)
    return query, heads(num_kv_heads, S, 2, dtype), heads(num_kv_heads, S, 3, dtype), mask


def core_config(num_kv_heads: int) -> ModelConfig:
    sizes = {"num_layers": 1, "num_heads": 4, "width": 16, "context_length": S, "vocab_size": 5}
    return make_section(ModelConfig, {**sizes, "num_kv_heads": num_kv_heads})


@pytest.fixture(params=[4, 2, 1], ids="{} key heads".format)
def num_kv_heads(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=MASKS)
def mask(request: pytest.FixtureRequest) -> Mask:
    return MASKS[request.param]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fused_core_equals_explicit_core(
    mask: Mask, num_kv_heads: int, dtype: torch.dtype, assert_same: AssertSame
) -> None:
    config, inputs = core_config(num_kv_heads), core_inputs(mask, num_kv_heads, dtype)
    assert_same(SDPAttention(config)(*inputs), EagerAttention(config)(*inputs))


def test_both_cores_in_bfloat16_are_exact_up_to_rounding(mask: Mask, num_kv_heads: int) -> None:
    config = core_config(num_kv_heads)
    query, key, value, _ = core_inputs(mask, num_kv_heads, torch.bfloat16)
    exact = EagerAttention(config)(query.double(), key.double(), value.double(), mask)
    for core in (SDPAttention(config), EagerAttention(config)):
        # bfloat16 keeps 8 bits: scores, weights and output are each off by at most 2**-9 of values below 4
        torch.testing.assert_close(core(query, key, value, mask).double(), exact, rtol=0, atol=0.03)


def test_explicit_core_equals_the_formula_for_each_pair(mask: Mask, num_kv_heads: int, assert_same: AssertSame) -> None:
    query, key, value, _ = core_inputs(mask, num_kv_heads, torch.float64)
    allowed = mask.allowed.expand(ROWS, 1, -1, -1)
    expected = torch.zeros_like(query)
    for row in range(ROWS):
        for head in range(4):
            kv_head = head * num_kv_heads // 4  # neighbouring query heads share a key/value head
            for t in range(mask.num_queries):
                visible = [s for s in range(S) if allowed[row, 0, t, s]]
                exps = [math.exp(query[row, head, t] @ key[row, kv_head, s] / math.sqrt(WIDTH)) for s in visible]
                for exp, s in zip(exps, visible, strict=True):
                    expected[row, head, t] += exp / sum(exps) * value[row, kv_head, s]
    assert_same(EagerAttention(core_config(num_kv_heads))(query, key, value, mask), expected)


def test_a_core_without_the_scale_is_detected(assert_same: AssertSame) -> None:
    query, key, value, mask = core_inputs(MASKS["causal"], 4, torch.float32)
    with pytest.raises(AssertionError, match="not close"):
        assert_same(
            SDPAttention(core_config(4))(query * 2, key, value, mask),
            EagerAttention(core_config(4))(query, key, value, mask),
        )

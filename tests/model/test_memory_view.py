"""Attention whose keys and values come from an encoder's output."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.model.attention import Attention
from foretell.model.cross_attention import RotatedCrossAttention
from foretell.model.memory_cache import MemoryKVView
from foretell.model.position import RotaryPosition

B, T, S, D = 2, 3, 5, 8
SIZES = {"num_layers": 2, "num_heads": 2, "width": D, "context_length": 8, "vocab_size": 11}


@pytest.fixture
def attention() -> Attention:
    torch.manual_seed(0)
    return Attention(ModelConfig.model_validate(SIZES), layer=1).eval()


def torch_attention(attention: Attention, x: Tensor, memory: Tensor, lengths: list[int]) -> Tensor:
    """The output of torch's MultiheadAttention with the same weights."""
    reference = torch.nn.MultiheadAttention(D, 2, batch_first=True)
    projections = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([layer.weight for layer in projections]))
        reference.in_proj_bias.copy_(torch.cat([layer.bias for layer in projections]))
        reference.out_proj.load_state_dict(attention.output.state_dict())
    padding = torch.arange(S) >= torch.tensor(lengths)[:, None]
    return reference(x, memory, memory, key_padding_mask=padding, need_weights=False)[0]


@pytest.mark.parametrize("lengths", [None, [5, 5], [5, 2]])
def test_output_equals_torchs_multihead_attention(attention, lengths):
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    output = attention(x, MemoryKVView(memory, lengths), None)
    torch.testing.assert_close(output, torch_attention(attention, x, memory, lengths or [S, S]), rtol=1e-5, atol=1e-6)


def test_the_memory_is_projected_only_once(attention):
    memory, calls = torch.randn(B, S, D), []
    attention.key.register_forward_hook(lambda module, inputs, output: calls.append(output.shape[1]))
    view = MemoryKVView(memory)
    whole = attention(x := torch.randn(B, T, D), view, None)
    single = torch.cat([attention(x[:, step : step + 1], view, None) for step in range(T)], dim=1)
    assert calls == [S, 0, 0, 0]
    torch.testing.assert_close(single, whole, rtol=1e-5, atol=1e-6)


def test_padding_of_the_memory_is_ignored(attention):
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    other = memory.clone()
    other[1, 2:] = 7.0
    first, second = (attention(x, MemoryKVView(vectors, [5, 2]), None) for vectors in (memory, other))
    assert torch.equal(first, second)
    other[1, 1] = 7.0
    assert not torch.equal(first, attention(x, MemoryKVView(other, [5, 2]), None))


def test_rotated_scores_depend_on_the_distance_between_positions():
    config = ModelConfig.model_validate({**SIZES, "position": "rotary"})
    attention, rotary = RotatedCrossAttention(config, layer=1).eval(), RotaryPosition(config)
    x, memory, calls = torch.randn(B, T, D), torch.randn(B, S, D), []
    attention.key.register_forward_hook(lambda module, inputs, output: calls.append(output.shape[1]))

    def attend(first_query: int, first_key: int) -> Tensor:
        """All queries at once, then each alone, with the keys of the first call."""
        view, queries = MemoryKVView(memory), torch.arange(first_query, first_query + T)[None]
        view.rotation = rotary(view.positions + first_key, torch.float32)
        whole = attention(x, view, rotary(queries, torch.float32))
        steps = [attention(x[:, [t]], view, rotary(queries[:, [t]], torch.float32)) for t in range(T)]
        torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-5, atol=1e-6)
        return whole

    together = attend(0, 0)
    torch.testing.assert_close(attend(7, 7), together, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(attend(7, 0), together, rtol=1e-2, atol=1e-3)
    assert calls == [S, 0, 0, 0] * 3

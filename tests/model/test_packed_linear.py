"""Packed weights: equal matmuls, no stale copies, and their removal after a generation."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import torch
from torch import Tensor, nn

from foretell.config import ModelConfig, SamplingConfig, make_section
from foretell.generation.engine import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.init import make_decoder
from foretell.model.kernels import packed_linear
from foretell.model.kernels.packed_linear import MIN_TOKENS, PackedLinear, PackedTiedHead, PackedWeight, packed_weights

SIZES = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 64, "vocab_size": 37}


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return make_decoder(make_section(ModelConfig, {**SIZES, "tie_embeddings": request.param}), seed=1).eval()


def packed_paths(decoder: Decoder) -> list[str]:
    return [path for path, module in decoder.named_modules() if isinstance(module, PackedLinear | PackedTiedHead)]


@pytest.mark.parametrize("dtype", packed_linear.PRECISIONS)
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_packed_matmul_equals_the_layer(dtype: torch.dtype, rows: int) -> None:
    if not packed_linear.PRECISIONS[dtype]():
        pytest.skip(f"this processor has no {dtype} kernel")
    layer = nn.Linear(24, 40).to(dtype)
    x = torch.randn(1, rows, 24).to(dtype)
    with torch.no_grad():
        output = PackedWeight(layer.weight).matmul(x, layer.weight, layer.bias)
        torch.testing.assert_close(output, layer(x), rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_the_packed_copy_of_a_changed_weight_is_not_used() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(1, 8)
    packed_weight = PackedWeight(layer.weight)
    with torch.no_grad():
        layer.weight.zero_()
        assert torch.equal(packed_weight.matmul(x, layer.weight, layer.bias), layer(x))


def test_gradients_are_computed_with_packed_weights(decoder: Decoder) -> None:
    with packed_weights(decoder, None):
        decoder(torch.tensor([[1, 2]])).sum().backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())


def test_layers_are_packed_only_during_a_generation(decoder: Decoder) -> None:
    sampler = Sampler(SamplingConfig(temperature=0))
    steps = generate(decoder, [Sequence([1, 2])], sampler, MIN_TOKENS)
    next(steps)
    linear_paths = [path for path, module in decoder.named_modules() if isinstance(module, nn.Linear | TiedHead)]
    assert packed_paths(decoder) == linear_paths
    assert isinstance(steps, Generator)
    steps.close()
    assert packed_paths(decoder) == []


def test_weights_are_not_packed_for_a_few_tokens(decoder: Decoder) -> None:
    with packed_weights(decoder, MIN_TOKENS - 1):
        assert packed_paths(decoder) == []


def test_weights_are_not_packed_without_memory_for_the_copy(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "memory_of", lambda device: 1000)
    with packed_weights(decoder, None):
        assert packed_paths(decoder) == []


def test_two_overlapping_generations_leave_no_packed_layers(decoder: Decoder) -> None:
    first, second = packed_weights(decoder, None), packed_weights(decoder, None)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert packed_paths(decoder) == []


def test_packed_weights_generate_the_same_tokens(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def generated() -> list[int]:
        sequence = Sequence([1, 2, 3])
        for _ in generate(decoder, [sequence], Sampler(SamplingConfig(temperature=0)), 40):
            pass
        return sequence.generated

    with_packing = generated()
    monkeypatch.setattr(packed_linear, "pays", lambda decoder, max_tokens: False)
    assert generated() == with_packing


def test_a_matmul_with_another_weight_is_detected() -> None:
    layer, other = nn.Linear(8, 8), nn.Linear(8, 8)
    x: Tensor = torch.randn(1, 8)
    with torch.no_grad(), pytest.raises(AssertionError):
        torch.testing.assert_close(PackedWeight(other.weight).matmul(x, layer.weight, layer.bias), layer(x))

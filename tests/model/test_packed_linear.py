"""Packed weights give the same products, only as long as they are the layer's own, and leave nothing behind."""

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


def packed(decoder: Decoder) -> list[str]:
    return [path for path, module in decoder.named_modules() if isinstance(module, PackedLinear | PackedTiedHead)]


@pytest.mark.parametrize("dtype", packed_linear.PRECISIONS)
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_a_packed_product_is_the_product(dtype: torch.dtype, rows: int) -> None:
    if not packed_linear.PRECISIONS[dtype]():
        pytest.skip(f"this processor has no {dtype} kernel")
    layer = nn.Linear(24, 40).to(dtype)
    x = torch.randn(1, rows, 24).to(dtype)
    with torch.no_grad():
        found = PackedWeight(layer.weight).matmul(x, layer.weight, layer.bias)
        torch.testing.assert_close(found, layer(x), rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_weights_that_have_changed_since_are_not_used_from_their_packed_copy() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(1, 8)
    packed_weight = PackedWeight(layer.weight)
    with torch.no_grad():
        layer.weight.zero_()
        assert torch.equal(packed_weight.matmul(x, layer.weight, layer.bias), layer(x))


def test_gradients_come_through_while_a_generation_runs(decoder: Decoder) -> None:
    with packed_weights(decoder, None):
        decoder(torch.tensor([[1, 2]])).sum().backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())


def test_all_layers_are_packed_while_a_generation_runs_and_none_afterwards(decoder: Decoder) -> None:
    sampler = Sampler(SamplingConfig(temperature=0))
    steps = generate(decoder, [Sequence([1, 2])], sampler, MIN_TOKENS)
    next(steps)
    every = [path for path, module in decoder.named_modules() if isinstance(module, nn.Linear | TiedHead)]
    assert packed(decoder) == every
    assert isinstance(steps, Generator)
    steps.close()
    assert packed(decoder) == []


def test_a_few_tokens_are_not_worth_packing_for(decoder: Decoder) -> None:
    with packed_weights(decoder, MIN_TOKENS - 1):
        assert packed(decoder) == []


def test_there_must_be_room_for_the_copy(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "memory_of", lambda device: 1000)
    with packed_weights(decoder, None):
        assert packed(decoder) == []


def test_of_two_generations_at_once_neither_leaves_a_copy_behind(decoder: Decoder) -> None:
    first, second = packed_weights(decoder, None), packed_weights(decoder, None)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert packed(decoder) == []


def test_the_same_tokens_are_written_with_packed_weights_and_without(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written() -> list[int]:
        sequence = Sequence([1, 2, 3])
        for _ in generate(decoder, [sequence], Sampler(SamplingConfig(temperature=0)), 40):
            pass
        return sequence.generated

    with_copies = written()
    monkeypatch.setattr(packed_linear, "pays", lambda decoder, max_tokens: False)
    assert written() == with_copies


def test_a_product_that_uses_another_weight_is_noticed() -> None:
    layer, other = nn.Linear(8, 8), nn.Linear(8, 8)
    x: Tensor = torch.randn(1, 8)
    with torch.no_grad(), pytest.raises(AssertionError):
        torch.testing.assert_close(PackedWeight(other.weight).matmul(x, layer.weight, layer.bias), layer(x))

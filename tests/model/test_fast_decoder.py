"""A decoder prepared to generate; weights packed for oneDNN: equal matmuls and no stale copies."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import zip_longest

import pytest
import torch
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.generation.batch_generation import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.init import make_decoder
from foretell.model.kernels import fast_decoder
from foretell.model.kernels.fast_decoder import MIN_TOKENS, prepare_for_generation
from foretell.model.kernels.onednn_linear import PRECISIONS, PackedLinear, PackedTiedHead, PackedWeight
from tests.toy import KeepingSampler

SIZES = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 64, "vocab_size": 37}


@pytest.fixture(params=[False, True], ids=["oneDNN", "numba"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels that prepare a decoder."""
    if not request.param:
        monkeypatch.setattr(fast_decoder, "has_numba", lambda: False)


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_decoder, "has_numba", lambda: False)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return make_decoder(make_section(ModelConfig, {**SIZES, "tie_embeddings": request.param}), seed=1).eval()


def packed_paths(decoder: Decoder) -> list[str]:
    return [path for path, module in decoder.named_modules() if isinstance(module, PackedLinear | PackedTiedHead)]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_packed_matmul_equals_the_layer(dtype: torch.dtype, rows: int) -> None:
    if not PRECISIONS[dtype]():
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


@pytest.mark.usefixtures("without_numba")
def test_gradients_are_computed_with_packed_weights(decoder: Decoder) -> None:
    prepare_for_generation(decoder)(torch.tensor([[1, 2]])).sum().backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())


@pytest.mark.usefixtures("without_numba")
def test_all_linear_layers_are_packed_in_a_copy(decoder: Decoder) -> None:
    linear_paths = [path for path, module in decoder.named_modules() if isinstance(module, nn.Linear | TiedHead)]
    copied = prepare_for_generation(decoder, MIN_TOKENS)
    assert packed_paths(copied) == linear_paths
    assert packed_paths(decoder) == []
    weights, copied_weights = dict(decoder.named_parameters()), dict(copied.named_parameters())
    assert weights.keys() == copied_weights.keys()
    assert all(copied_weights[path] is weight for path, weight in weights.items())


@pytest.mark.usefixtures("without_numba")
def test_hooks_of_the_decoder_are_called_in_the_copy(decoder: Decoder) -> None:
    copied, calls = prepare_for_generation(decoder), list[str]()
    for path, module in decoder.named_modules():
        module.register_forward_hook(lambda *_, path=path: calls.append(path))
    copied(torch.tensor([[1, 2]]))
    assert {"", "head", "trunk.blocks.0", "trunk.blocks.1.attention.query"} <= set(calls)


@pytest.mark.usefixtures("without_numba")
def test_small_models_are_not_packed_for_a_few_tokens(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepare_for_generation(decoder, MIN_TOKENS - 1) is decoder
    monkeypatch.setattr(fast_decoder, "SMALL", 0)
    assert prepare_for_generation(decoder, 1) is not decoder


@pytest.mark.usefixtures("without_numba")
def test_weights_are_not_packed_without_memory_for_the_copy(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_decoder, "memory_of", lambda device: 1000)
    assert prepare_for_generation(decoder) is decoder


@pytest.mark.usefixtures("without_numba")
def test_weights_of_a_compiled_model_are_not_packed(decoder: Decoder) -> None:
    decoder.trunk.blocks[0].compile(backend="eager")
    assert prepare_for_generation(decoder) is decoder


@pytest.mark.usefixtures("kernels")
def test_a_model_can_be_copied_while_it_generates(decoder: Decoder) -> None:
    steps = generate(decoder, [Sequence([1, 2])], Sampler(SamplingConfig(temperature=0)), MIN_TOKENS)
    next(steps)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(copy.deepcopy(decoder)(ids), decoder(ids))


@pytest.mark.usefixtures("kernels")
def test_a_generation_does_not_change_the_bits_of_other_calls() -> None:
    decoder = make_decoder(make_section(ModelConfig, {**SIZES, "width": 96, "num_layers": 3}), seed=1).eval()
    ids = torch.tensor([[1, 2, 3]])
    alone = decoder(ids)
    steps = generate(decoder, [Sequence([1, 2])], Sampler(SamplingConfig(temperature=0)), MIN_TOKENS)
    next(steps)
    with torch.inference_mode():
        assert torch.equal(decoder(ids), alone)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("lengths", [(40, 8), (8, 40), (40, 33)])
def test_generations_in_turns_have_the_bits_of_each_alone(lengths: tuple[int, int]) -> None:
    decoder = make_decoder(make_section(ModelConfig, {**SIZES, "width": 96, "num_layers": 3}), seed=1).eval()

    def start(length: int) -> tuple[KeepingSampler, Iterator]:
        sampler = KeepingSampler(SamplingConfig(temperature=0))
        return sampler, generate(decoder, [Sequence([1, 2, 3])], sampler, length)

    alone = []
    for length in lengths:
        sampler, steps = start(length)
        list(steps)
        alone.append(sampler.logits)
    samplers, generations = zip(*map(start, lengths), strict=True)
    list(zip_longest(*generations))
    for sampler, expected in zip(samplers, alone, strict=True):
        assert torch.equal(torch.cat(sampler.logits), torch.cat(expected))


@pytest.mark.usefixtures("kernels")
def test_packed_weights_generate_the_same_tokens(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def generated() -> list[int]:
        sequence = Sequence([1, 2, 3])
        list(generate(decoder, [sequence], Sampler(SamplingConfig(temperature=0)), 40))
        return sequence.generated

    with_packing = generated()
    monkeypatch.setattr(fast_decoder, "is_worthwhile", lambda decoder, max_tokens: False)
    assert generated() == with_packing


def test_a_matmul_with_another_weight_is_detected() -> None:
    layer, other = nn.Linear(8, 8), nn.Linear(8, 8)
    x: Tensor = torch.randn(1, 8)
    with torch.no_grad(), pytest.raises(AssertionError):
        torch.testing.assert_close(PackedWeight(other.weight).matmul(x, layer.weight, layer.bias), layer(x))

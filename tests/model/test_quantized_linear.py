"""Quantised layers of a decoder: the same outputs as plain layers with the dequantised weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from foretell.config.model import ModelConfig
from foretell.config.quantization import QuantizationConfig, Scheme
from foretell.config.section import make_section
from foretell.errors import ConfigError, UsageError
from foretell.model import cpu_matmul
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.init import empty_decoder, make_decoder
from foretell.model.quantize_decoder import make_quantization, quantize_decoder
from foretell.model.quantized_linear import (
    EMBEDDINGS,
    LINEARS,
    Int4Linear,
    Int8Embedding,
    Int8Linear,
    QuantizedMatrix,
    QuantizedTiedHead,
    count_weights,
    quantized_layers,
)
from foretell.model.structure import model_structure
from tests import toy

SIZES = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 64, "vocab_size": 37}
LLAMA = {**SIZES, **toy.LLAMA, "num_kv_heads": 1, "feedforward_width": 48}
SHAPES = {
    "gpt2": SIZES,
    "llama": {**LLAMA, "tie_embeddings": False},
    "llama, tied": LLAMA,
    "head with bias": {**SIZES, "bias": {"head": True}},
}
SCHEMES: tuple[Scheme, ...] = ("int8", "int4")
with_heads = pytest.mark.parametrize(("to", "head"), [("int8", "int8"), ("int4", "int8"), ("int4", "int4")])
IDS = torch.arange(24).view(2, 12)


@pytest.fixture(params=list(SHAPES))
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return make_decoder(make_section(ModelConfig, SHAPES[request.param]), seed=1).eval()


def quantized(
    decoder: Decoder, to: Scheme, group: int = 8, keep: tuple[str, ...] = (), head: Scheme = "int8"
) -> Decoder:
    changed = copy.deepcopy(decoder)
    quantize_decoder(changed, QuantizationConfig(to=to, group=group, keep=keep, head=head))
    return changed


def with_plain_layers(decoder: Decoder, changed: Decoder) -> Decoder:
    """The decoder as it was, with the dequantised weights of the changed one."""
    plain = copy.deepcopy(decoder)
    with torch.no_grad():
        for path, layer in quantized_layers(changed).items():
            plain.get_parameter(f"{path}.weight").copy_(layer.weight)
    return plain


@pytest.mark.parametrize("at_once", [cpu_matmul.ELEMENTS_AT_ONCE, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@with_heads
def test_logits_equal_the_dequantised_weights(
    decoder: Decoder, to: Scheme, head: Scheme, dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = quantized(decoder, to, head=head)
    plain = with_plain_layers(decoder, changed)
    monkeypatch.setattr(cpu_matmul, "ELEMENTS_AT_ONCE", at_once)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    with torch.no_grad():
        logits = changed.to(dtype)(IDS)
        assert logits.dtype == dtype
        torch.testing.assert_close(logits, plain.to(dtype)(IDS), rtol=tolerance, atol=tolerance)
        assert not torch.allclose(logits, decoder(IDS).to(dtype), rtol=0, atol=1e-7)


@with_heads
def test_which_layers_are_quantised(decoder: Decoder, to: Scheme, head: Scheme) -> None:
    changed = quantized(decoder, to, head=head)
    left = {type(module) for module in changed.modules() if isinstance(module, nn.Linear)}
    assert not left
    assert all(type(module) is LINEARS[to] for path, module in quantized_layers(changed).items() if "blocks" in path)
    is_tied = decoder.config.tie_embeddings
    assert type(changed.head) is (QuantizedTiedHead if is_tied else LINEARS[head])
    assert type(changed.embed.token) is (EMBEDDINGS[head] if is_tied else Int8Embedding)
    floats = {path for path, tensor in changed.state_dict().items() if path.endswith("weight")}
    assert all("norm" in path or path == "embed.position.weight" for path in floats)


@with_heads
def test_a_tied_head_reads_the_integers_of_the_embedding(to: Scheme, head: Scheme) -> None:
    changed = quantized(make_decoder(make_section(ModelConfig, SIZES), seed=1), to, head=head)
    assert isinstance(changed.head, QuantizedTiedHead) and changed.head.token[0] is changed.embed.token
    assert not [key for key in changed.state_dict() if key.startswith("head")]


def test_kept_layers_stay_as_they_are(decoder: Decoder) -> None:
    changed = quantized(decoder, "int4", keep=("**.attention.*", "head"))
    assert isinstance(changed.trunk.get_submodule("blocks.1.attention.query"), nn.Linear)
    assert isinstance(changed.trunk.get_submodule("blocks.1.feedforward.up"), Int4Linear)
    assert type(changed.head) is type(decoder.head)
    # One matrix: it cannot be kept and quantised
    assert isinstance(changed.embed.token, nn.Embedding) == isinstance(decoder.head, TiedHead)


def test_names_in_a_trace_and_the_number_of_weights_stay(decoder: Decoder) -> None:
    changed = quantized(decoder, "int4")
    assert model_structure(changed).names == model_structure(decoder).names
    assert {name: value.formula for name, value in model_structure(changed).values.items()} == {
        name: value.formula for name, value in model_structure(decoder).values.items()
    }
    assert count_weights(changed) == count_weights(decoder) == sum(weight.numel() for weight in decoder.parameters())


@with_heads
def test_shapes_on_the_meta_device_equal_a_quantised_decoder(decoder: Decoder, to: Scheme, head: Scheme) -> None:
    settings = make_quantization(decoder, to, head=head)
    empty = empty_decoder(decoder.config)
    quantize_decoder(empty, settings)
    quantize_decoder(decoder, settings)
    of = {path: (tensor.shape, tensor.dtype) for path, tensor in decoder.state_dict().items()}
    assert {path: (tensor.shape, tensor.dtype) for path, tensor in empty.state_dict().items()} == of


@with_heads
def test_precision_changes_no_value(decoder: Decoder, to: Scheme, head: Scheme) -> None:
    changed = quantized(decoder, to, head=head)
    before = {path: layer.weight for path, layer in quantized_layers(changed).items()}
    changed.to(torch.bfloat16).to(torch.float32)
    assert changed.dtype == torch.float32
    assert all(torch.equal(layer.weight, before[path]) for path, layer in quantized_layers(changed).items())


def test_gradients_flow_through_a_quantised_layer() -> None:
    layer = Int8Linear(Int8Linear.quantize(torch.randn(3, 4), 2), None)
    x = torch.randn(2, 4, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.float().sum(0).expand(2, 4))


def test_a_group_that_does_not_divide_is_refused_before_anything_changes() -> None:
    decoder = make_decoder(make_section(ModelConfig, LLAMA), seed=1)
    with pytest.raises(ConfigError, match=r"'trunk.blocks.0.feedforward.down' has a width of 48"):
        quantize_decoder(
            decoder, QuantizationConfig(to="int4", group=32, keep=("embed.token", "**.attention.*", "**.up", "**.gate"))
        )
    assert not [module for module in decoder.modules() if isinstance(module, QuantizedMatrix)]


def test_a_glob_without_a_match_is_refused() -> None:
    decoder = make_decoder(make_section(ModelConfig, LLAMA), seed=1)
    with pytest.raises(UsageError, match="nothing here is named"):
        quantize_decoder(decoder, QuantizationConfig(to="int8", group=8, keep=("**.attn",)))


def test_a_head_with_fewer_bits_than_the_other_layers_is_refused(decoder: Decoder) -> None:
    with pytest.raises(UsageError, match="head int4 is for int4 models, not for int8"):
        make_quantization(decoder, "int8", head="int4")
    with pytest.raises(UsageError, match="keep matches the head, so it cannot be int4"):
        make_quantization(decoder, "int4", keep=("head",), head="int4")


@pytest.mark.parametrize(("width", "group", "is_warned"), [(68, 4, True), (64, 32, False), (88, 22, False)])
def test_int4_in_small_groups_is_warned_of(
    width: int, group: int, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = make_decoder(make_section(ModelConfig, {**SIZES, "width": width, "num_heads": 2}), seed=1)
    settings = [make_quantization(decoder, scheme) for scheme in ("int8", "int4")]
    expected = "int4 in groups of 4 takes 12.0 bits per weight; int8 takes 8.5 and is more accurate"
    assert [record.getMessage() for record in caplog.records] == ([expected] if is_warned else [])
    assert settings[1].group == group

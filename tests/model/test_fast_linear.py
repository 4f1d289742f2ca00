"""Layers with packed weights: equal outputs, no stale copies, and the plain form where no kernel suits."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.init import make_decoder
from foretell.model.kernels import fast_decoder
from foretell.model.kernels.fast_decoder import MIN_TOKENS, prepare_for_generation
from foretell.model.kernels.onednn_linear import PackedLinear
from foretell.model.quantize_decoder import make_quantization, quantize_decoder
from foretell.model.surgery import copy_with

pytest.importorskip("numba")

from foretell.model.kernels.fast_linear import FAST, MAX_ROWS, can_pack, fast_form

SIZES = {"num_layers": 2, "num_heads": 2, "width": 32, "context_length": 128, "vocab_size": 37}
IDS = torch.tensor([[1, 2, 3], [4, 5, 36]])


def model(to: Any = None, dtype: torch.dtype = torch.float32, **changes: Any) -> Decoder:
    decoder = make_decoder(make_section(ModelConfig, {**SIZES, **changes}), seed=1).eval()
    if to is not None:
        quantize_decoder(decoder, make_quantization(decoder, to))
    return decoder.to(dtype)


def with_fast_layers(decoder: Decoder, is_strict: bool = False) -> Decoder:
    """A copy of a decoder with the fast forms of its layers; its blocks are not fused."""
    forms = {path: fast_form(layer, is_strict) for path, layer in decoder.named_modules() if can_pack(layer)}
    return copy_with(decoder, forms)


def fast_paths(decoder: nn.Module) -> list[str]:
    return [path for path, module in decoder.named_modules() if type(module) in FAST.values()]


@pytest.mark.parametrize("to", [None, "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_decoder_with_fast_layers_has_the_logits_of_the_plain_one(to, dtype, is_tied):
    decoder = model(to, dtype, tie_embeddings=is_tied)
    fast = with_fast_layers(decoder)
    assert {"head", "trunk.blocks.0.attention.query"} <= set(fast_paths(fast))
    assert fast_paths(decoder) == []
    with torch.inference_mode():
        expected = decoder(IDS)
        torch.testing.assert_close(fast(IDS), expected, rtol=0, atol=expected.abs().max().item() * tolerance(dtype))


def tolerance(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 2e-2


def test_weights_and_names_of_the_decoder_are_kept():
    decoder = model("int4")
    fast = prepare_for_generation(decoder)
    state, others = decoder.state_dict(), fast.state_dict()
    assert state.keys() == others.keys()
    assert all(others[name].data_ptr() == tensor.data_ptr() for name, tensor in state.items())


@pytest.mark.parametrize("to", [None, "int8", "int4"])
def test_packed_copies_of_changed_weights_are_not_used(to):
    decoder = model(to)
    fast = with_fast_layers(decoder)
    with torch.no_grad():
        layer: Any = decoder.get_submodule("trunk.blocks.1.feedforward.down")
        (layer.weight if to is None else layer.scales).zero_()
        torch.testing.assert_close(fast(IDS), decoder(IDS))


def test_gradients_equal_the_plain_layers():
    decoder = model()
    prepare_for_generation(decoder)(IDS).sum().backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())


def test_calls_with_many_rows_are_left_to_the_plain_layer(monkeypatch):
    layer = nn.Linear(8, 8)
    fast = fast_form(layer)
    with torch.no_grad():
        many = torch.randn(MAX_ROWS + 1, 8)
        assert torch.equal(fast(many), layer(many))
        monkeypatch.setattr(type(fast.fast.matmul), "__call__", lambda self, x: x.new_full((len(x), 8), 7.0))
        assert torch.equal(fast(many), layer(many))
        assert (fast(many[:MAX_ROWS]) == 7).all()


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("inputs", [4, 16])
def test_rows_of_another_width_are_refused_as_the_plain_layer_does(inputs, is_strict):
    fast = fast_form(nn.Linear(8, 8), is_strict)
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fast(torch.randn(4, inputs))


def test_a_strict_row_has_the_same_bits_with_any_other_rows():
    decoder = with_fast_layers(model(), is_strict=True)
    layer = decoder.get_submodule("trunk.blocks.0.feedforward.up")
    x = torch.randn(500, 32)
    with torch.no_grad():
        assert torch.equal(layer(x)[499:], layer(x[499:]))


def test_groups_that_no_kernel_reads_keep_the_plain_layer():
    decoder = make_decoder(make_section(ModelConfig, {**SIZES, "width": 36, "num_heads": 3}), seed=1).eval()
    quantize_decoder(decoder, make_quantization(decoder, "int4", group=6))
    assert not {path for path in fast_paths(prepare_for_generation(decoder)) if path.startswith("trunk")}


def test_subclasses_stay_as_they_are():
    class Louder(nn.Linear):
        pass

    layer = Louder(8, 8)
    assert fast_form(layer) is layer
    assert type(fast_form(nn.Linear(8, 8).double())) is nn.Linear


def test_a_short_generation_is_not_prepared():
    decoder = model()
    assert prepare_for_generation(decoder, max_tokens=MIN_TOKENS - 1) is decoder


def test_without_numba_torch_decodes_and_one_line_says_so(monkeypatch, caplog):
    monkeypatch.setattr(fast_decoder, "has_numba", lambda: False)
    fast_decoder.tell_once.cache_clear()
    with caplog.at_level(logging.WARNING, "foretell"):
        kinds = {type(module) for module in prepare_for_generation(model()).modules()}
        prepare_for_generation(model())
    assert PackedLinear in kinds or nn.Linear in kinds
    assert [record.message for record in caplog.records] == [fast_decoder.NOTE]


def test_the_head_of_a_tied_decoder_is_packed_once():
    fast = prepare_for_generation(model())
    assert isinstance(fast.head, TiedHead)
    assert fast.head.weight.data_ptr() == fast.embed.token.weight.data_ptr()

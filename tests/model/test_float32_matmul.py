"""Products of bfloat16 on a CPU without bfloat16 instructions: in float32, rounded once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from foretell.config import ModelConfig, SamplingConfig
from foretell.device import multiplies_bfloat16
from foretell.generation.batch_generation import run
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules, Sequence
from foretell.model.init import make_decoder
from foretell.model.kernels import float32_matmul
from foretell.model.kernels.fast_decoder import in_fastest_dtype
from foretell.model.kernels.float32_matmul import MIN_ROWS, Float32Linear, linear
from foretell.model.quantized_linear import Int4Linear, Int8Linear, QuantizedLinear

CONFIG = ModelConfig(num_layers=1, num_heads=2, width=32, context_length=64, vocab_size=11)


@pytest.fixture
def slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float32_matmul, "is_bfloat16_slow", lambda: True)
    monkeypatch.setattr("foretell.model.kernels.fast_decoder.is_bfloat16_slow", lambda: True)


@pytest.mark.usefixtures("slow_bfloat16")
@pytest.mark.parametrize("at_once", [float32_matmul.ELEMENTS_AT_ONCE, 100])
def test_products_in_float32_are_rounded_once(monkeypatch, at_once):
    monkeypatch.setattr(float32_matmul, "ELEMENTS_AT_ONCE", at_once)
    x, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((2, 8, 48), (37, 48), (37,)))
    expected = F.linear(x.float(), weight.float(), bias.float())
    output = linear(x, weight, bias)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected.bfloat16(), rtol=2**-7, atol=1e-5)
    assert not torch.equal(output, expected)  # it is rounded


@pytest.mark.usefixtures("slow_bfloat16")
@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
def test_quantised_layers_multiply_many_rows_in_float32(kind: type[QuantizedLinear], monkeypatch):
    bias = torch.randn(40).bfloat16()
    layer = kind(kind.quantize(torch.randn(40, 64).bfloat16(), 32), bias)
    x, dtypes = torch.randn(MIN_ROWS, 64).bfloat16(), []
    monkeypatch.setattr(F, "linear", lambda x, weight, bias: dtypes.append(x.dtype) or x @ weight.T + bias)
    expected = x.float() @ layer.rows(slice(None)).T + bias.float()  # `layer.weight` is rounded to bfloat16
    torch.testing.assert_close(layer(x), expected.bfloat16(), rtol=2**-7, atol=1e-4)
    layer(x[:-1])
    assert dtypes == [torch.float32, torch.bfloat16]


@pytest.mark.usefixtures("slow_bfloat16")
def test_a_prompt_is_read_with_products_in_float32(monkeypatch):
    decoder = make_decoder(CONFIG, 1).eval().requires_grad_(False).to(torch.bfloat16)
    dtypes, plain = set(), F.linear
    monkeypatch.setattr(F, "linear", lambda x, *rest: dtypes.add(x.dtype) or plain(x, *rest))
    sequence = Sequence([1, 2, 3, 4, 5, 6], rules=Rules(Sampler(SamplingConfig(temperature=0)), 1))
    for _ in run(Scheduler(decoder), [sequence]):
        pass
    assert dtypes == {torch.float32, torch.bfloat16}  # the layers, and the head of the last token


@pytest.mark.usefixtures("slow_bfloat16")
def test_the_copy_shares_weights_and_hooks():
    decoder = make_decoder(CONFIG, 1).eval().requires_grad_(False).to(torch.bfloat16)
    copy, ids, seen = in_fastest_dtype(decoder), torch.arange(10)[None], []
    query = "trunk.blocks.0.attention.query"
    assert type(copy.get_submodule(query)) is Float32Linear
    assert type(decoder.get_submodule(query)) is nn.Linear
    assert copy.get_submodule(query).weight is decoder.get_submodule(query).weight
    decoder.get_submodule(query).register_forward_hook(lambda *_: seen.append(1))
    largest = decoder(ids).abs().max()
    assert (copy(ids) - decoder(ids)).abs().max() < 2**-5 * largest
    assert len(seen) == 3


def test_float32_and_fast_bfloat16_stay_as_they_are(monkeypatch):
    decoder = make_decoder(CONFIG, 1)
    monkeypatch.setattr("foretell.model.kernels.fast_decoder.is_bfloat16_slow", lambda: True)
    assert in_fastest_dtype(decoder) is decoder
    monkeypatch.setattr("foretell.model.kernels.fast_decoder.is_bfloat16_slow", lambda: False)
    assert in_fastest_dtype(decoder.to(torch.bfloat16)) is decoder


@pytest.mark.parametrize("limit", ["AVX2", "avx512_core_vnni"])
def test_a_limit_of_onednn_takes_the_instructions_away(monkeypatch, limit):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert not multiplies_bfloat16(torch.device("cpu"))

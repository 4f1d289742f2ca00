"""Products on a CPU where torch's own are slow: bfloat16 in float32, rounded once, and float32 by oneDNN."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.generation.batch_generation import run
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules, Sequence
from foretell.model import cpu_matmul
from foretell.model.cpu_matmul import MIN_ROWS, ROWS_AT_ONCE, CPULinear, OneDNNLinear, linear
from foretell.model.init import make_decoder
from foretell.model.quantized_linear import Int4Linear, Int8Linear, QuantizedLinear
from foretell.model.surgery import copy_with, recast
from foretell.system.device import multiplies_bfloat16
from foretell.training.execution import make_objective

CONFIG = ModelConfig(num_layers=1, num_heads=2, width=32, context_length=64, vocab_size=11)


@pytest.fixture
def slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_matmul, "is_bfloat16_slow", lambda: True)


@pytest.mark.usefixtures("slow_bfloat16")
@pytest.mark.parametrize("at_once", [cpu_matmul.ELEMENTS_AT_ONCE, 100])
def test_products_in_float32_are_rounded_once(monkeypatch, at_once):
    monkeypatch.setattr(cpu_matmul, "ELEMENTS_AT_ONCE", at_once)
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
    list(run(Scheduler(decoder), [sequence]))
    assert dtypes == {torch.float32, torch.bfloat16}  # the layers, and the head of the last token


@pytest.mark.usefixtures("slow_bfloat16")
def test_layers_of_a_cpu_multiply_in_float32_and_keep_weights_and_hooks():
    decoder = make_decoder(CONFIG, 1).eval().requires_grad_(False).to(torch.bfloat16)
    path, ids, seen = "trunk.blocks.0.attention.query", torch.arange(10)[None], []
    decoder.get_submodule(path).register_forward_hook(lambda *_: seen.append(1))
    plain = copy_with(decoder, {path: recast(decoder.get_submodule(path), nn.Linear)})
    assert type(decoder.get_submodule(path)) is CPULinear
    assert plain.get_submodule(path).weight is decoder.get_submodule(path).weight
    largest = decoder(ids).abs().max()
    assert (plain(ids) - decoder(ids)).abs().max() < 2**-5 * largest
    assert len(seen) == 3


def test_fast_dtypes_are_multiplied_as_they_are(monkeypatch):
    monkeypatch.setattr(cpu_matmul, "is_mkl_slow", lambda: False)
    for is_slow, dtype in ((True, torch.float32), (False, torch.bfloat16), (True, torch.float64)):
        monkeypatch.setattr(cpu_matmul, "is_bfloat16_slow", lambda is_slow=is_slow: is_slow)
        x, weight = torch.randn(ROWS_AT_ONCE, 256).to(dtype), torch.randn(512, 256).to(dtype)
        assert torch.equal(linear(x, weight, None), F.linear(x, weight))


@pytest.fixture
def slow_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(cpu_matmul, "is_mkl_slow", lambda: True)


@pytest.mark.usefixtures("slow_mkl")
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 64, 256), (5, 23, 256)])  # a multiple of ROWS_AT_ONCE rows, and another number
def test_products_and_gradients_by_onednn(monkeypatch, with_bias, shape):
    apply, counts = OneDNNLinear.apply, []
    monkeypatch.setattr(OneDNNLinear, "apply", lambda x, *rest: counts.append(len(x)) or apply(x, *rest))
    strided = torch.randn(*reversed(shape)).permute(2, 1, 0)
    for x in (torch.randn(*shape), strided):
        weight, bias = torch.randn(512, shape[-1]), torch.randn(512) if with_bias else None
        inputs = [each.requires_grad_() for each in (x, weight, bias) if each is not None]
        output = linear(x, weight, bias)
        d_y = torch.randn_like(output)
        exact = [each.detach().double().requires_grad_() for each in inputs]
        expected = F.linear(*exact)
        found = (output, *torch.autograd.grad(output, inputs, d_y))
        for number, other in zip(found, (expected, *torch.autograd.grad(expected, exact, d_y.double())), strict=True):
            torch.testing.assert_close(number.double(), other, rtol=1e-5, atol=1e-3)
        with torch.no_grad():
            assert torch.equal(linear(x, weight, bias), output)
    assert counts and all(count % ROWS_AT_ONCE == 0 for count in counts)


def test_fast_bfloat16_has_few_numbers_of_rows(monkeypatch):
    """oneDNN compiles a kernel for each."""
    monkeypatch.setattr(cpu_matmul, "is_bfloat16_slow", lambda: False)
    plain, counts = F.linear, set()
    monkeypatch.setattr(F, "linear", lambda x, *rest: counts.add(len(x)) or plain(x, *rest))
    weight, bias = torch.randn(8, 32).bfloat16(), torch.randn(8).bfloat16()
    for count in (*range(1, 200), 512, 513, 900):
        x = torch.randn(count, 32).bfloat16()
        torch.testing.assert_close(linear(x, weight, bias), plain(x, weight, bias), rtol=2**-7, atol=2**-7)
    assert counts == {*range(1, 32), *range(32, 225, 32), 512, 768, 1024}


@pytest.mark.usefixtures("slow_mkl")
@pytest.mark.parametrize("bias", [torch.randn(1024)[::2], torch.randn(1).expand(512)])
def test_onednn_adds_a_strided_bias(bias):
    x, weight = torch.randn(64, 256), torch.randn(512, 256)
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias), rtol=1e-5, atol=1e-3)


@pytest.mark.usefixtures("slow_mkl")
def test_onednn_has_second_derivatives():
    given = torch.randn(64, 256) / 16, torch.randn(512, 256), torch.randn(512)
    found = []
    for call, dtype in ((linear, torch.float32), (F.linear, torch.float64)):
        inputs = [each.to(dtype).requires_grad_() for each in given]
        first = torch.autograd.grad(call(*inputs).tanh().sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(torch.stack([each.square().sum() for each in first]).sum(), inputs))
    for number, exact in zip(*found, strict=True):
        torch.testing.assert_close(number.double(), exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))


@pytest.mark.usefixtures("slow_mkl")
def test_a_compiled_layer_has_no_operator_that_cannot_be_compiled():
    layer, operators = CPULinear(256, 512), []

    def note(graph, inputs):
        operators.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    output = torch.compile(layer, backend=note, fullgraph=True)(x := torch.randn(64, 256))
    assert operators and not any("pointwise" in name or "autograd" in name for name in operators)
    torch.testing.assert_close(output, layer(x), rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("slow_mkl")
def test_autocast_and_few_rows_are_left_to_torch():
    x, weight = torch.randn(ROWS_AT_ONCE, 256), torch.randn(512, 256, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, None).dtype == torch.bfloat16
    few = linear(x[:-1], weight, None)
    assert torch.equal(few, F.linear(x[:-1], weight)) and "OneDNN" not in type(few.grad_fn).__name__


def test_training_multiplies_with_torch_s_own_layers():
    decoder = make_decoder(CONFIG, 1)
    query = decoder.get_submodule("trunk.blocks.0.attention.query")
    make_objective(decoder, torch.device("cpu"), torch.float32)
    trained = decoder.get_submodule("trunk.blocks.0.attention.query")
    assert (type(query), type(trained)) == (CPULinear, nn.Linear) and trained.weight is query.weight


@pytest.mark.parametrize("limit", ["AVX2", "avx512_core_vnni"])
def test_a_limit_of_onednn_takes_the_instructions_away(monkeypatch, limit):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert not multiplies_bfloat16(torch.device("cpu"))

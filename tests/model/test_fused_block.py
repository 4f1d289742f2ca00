"""Fused blocks: equal to their modules for every configuration, and not used where hooks are registered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.model.kernels.fast_decoder import prepare_for_generation
from foretell.model.lora import LoRAConfig, LoRALinear
from foretell.model.paged_cache import PagedKVCache, PagedKVView, PagedRow
from foretell.model.quantize_decoder import make_quantization, quantize_decoder
from foretell.model.quantized_linear import QuantizedLinear
from foretell.model.surgery import copy_with_own_hooks, replace
from foretell.numerics.activations import activation_name

pytest.importorskip("numba")

from foretell.model.kernels import fast_linear, fused_pass, matmul
from foretell.model.kernels.fast_linear import FastForward, FastWeight
from foretell.model.kernels.fused_pass import FusedBlock
from foretell.model.kernels.program import Program
from foretell.model.kernels.strict_layers import CompiledActivation
from foretell.model.kernels.threads import SCRATCH
from foretell.model.kernels.vector_math import ACTIVATIONS
from foretell.model.kernels.vectors import HAS_VNNI

TABLES = ([3, 1, 4], [2, 5, 6])  # blocks of two rows, not in order
WHOLE = {"width": 32, "head_width": 16, "feedforward_width": 64}  # multiples of what kernels read at once
PASSES = (5, 1, 1, 3)  # tokens at once; the second row has one less of several


@torch.inference_mode()
def read(decoder: Decoder, passes: tuple[int, ...] = PASSES) -> Tensor:
    """The hidden states of all tokens of two rows that are read in these passes, those of the first row first."""
    cache = PagedKVCache(decoder.config, 7, decoder.dtype, "cpu")
    ids = torch.randint(decoder.config.vocab_size, (2, 96), generator=torch.Generator().manual_seed(1))
    starts, states = [0, 0], (list[Tensor](), list[Tensor]())
    for length in passes:
        counts = [length, max(1, length - 1)]
        rows = [PagedRow(*row) for row in zip(TABLES, starts, counts, strict=True)]
        new = torch.stack([row[start : start + length] for row, start in zip(ids, starts, strict=True)])
        hidden = decoder.hidden(new, PagedKVView(cache, rows))
        for row, count in enumerate(counts):
            states[row].append(hidden[row, :count])
            starts[row] += count
    return torch.cat((*states[0], *states[1]))


def is_fused(decoder: Decoder) -> bool:
    return all(isinstance(block, FusedBlock) for block in decoder.trunk.blocks)


def with_low_rank(layer: nn.Module) -> LoRALinear:
    assert isinstance(layer, nn.Linear)
    return LoRALinear(layer, LoRAConfig(rank=2))


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference in units of the largest value."""
    return ((one.float() - other.float()).abs().max() / one.float().abs().max()).item()


@pytest.fixture
def make(make_decoder: Callable[..., Decoder]) -> Callable[..., Decoder]:
    return partial(make_decoder, dtype=torch.float32)


FUSABLE = (
    "gpt1", "gpt2", "gpt3", "llama", "mistral", "qwen3", "sinusoidal, norm after", "no positions", "no norm",
    "linear rotation", "one key head", "biases", "parallel", "half rotated", "parallel, shared norm", "smallest",
    "toy-that-answers", "attention alone, norm after", "no residual", "olmo2", "gemma3",
)  # fmt: skip


@pytest.mark.parametrize("name", FUSABLE)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_fused_block_computes_what_its_modules_do(name, threads, make):
    torch.set_num_threads(threads)
    decoder = make(name)
    fused = prepare_for_generation(decoder)
    assert is_fused(fused)
    assert distance(read(decoder), read(fused)) < 1e-5
    decoder = decoder.bfloat16()
    # norms of small updates enlarge it, by modules 2**-4 from float32
    rounding = 2**-3 if name in ("olmo2", "gemma3") else 2**-5
    assert distance(read(decoder), read(prepare_for_generation(decoder))) < rounding


@pytest.mark.parametrize("sizes", [(48, 1, 48, 50), (40, 5, 8, 33), (96, 2, 16, 192), (64, 4, 20, 7)])
def test_odd_sizes_are_computed(sizes, make):
    width, heads, head_width, inner = sizes
    changes = {"width": width, "num_heads": heads, "head_width": head_width, "feedforward_width": inner}
    decoder = make("llama", **changes, num_kv_heads=1)
    assert distance(read(decoder), read(prepare_for_generation(decoder))) < 1e-5


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("feedforward", ["mlp", "gated"])
def test_every_activation_is_computed(activation, feedforward, make):
    decoder = make("gpt2", activation=activation, feedforward=feedforward)
    assert distance(read(decoder), read(prepare_for_generation(decoder))) < 1e-5


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu_erf"])
def test_activations_of_many_rows_are_compiled_with_the_gradients_of_the_plain_form(activation, make):
    decoder = make("gpt2", activation=activation)
    path = "trunk.blocks.0.feedforward.activation"
    plain, kernel = (each.get_submodule(path) for each in (decoder, prepare_for_generation(decoder)))
    assert isinstance(kernel, CompiledActivation) and activation_name(kernel) == activation
    for x in (torch.randn(count).to(dtype) for count in (3, 33, 50_001) for dtype in (torch.float32, torch.bfloat16)):
        with torch.no_grad():
            exact = plain(x.double()).to(x.dtype)  # torch's GELU in float32 is off by 1.2e-6 with AVX-512
            torch.testing.assert_close(kernel(x), exact, rtol=torch.finfo(x.dtype).eps * 16, atol=1e-6)
        assert torch.equal(kernel(x.requires_grad_()), kernel(x.detach()))
        assert torch.equal(gradient_of(kernel, x), gradient_of(plain, x))


def gradient_of(form: nn.Module, x: Tensor) -> Tensor:
    return torch.autograd.grad(form(x).sum(), x)[0]


@pytest.mark.parametrize("window", [None, 3, 16, 40])
@pytest.mark.parametrize("head_width", [4, 16, 20, 80])
def test_attention_reaches_over_blocks(window, head_width, make):
    changes = {"window": window, "head_width": head_width, "context_length": 96}
    decoder = make("llama", **changes)
    passes = (20, 1, 11, 1, 1, 30, 1, 25)
    assert distance(read(decoder, passes), read(prepare_for_generation(decoder), passes)) < 1e-5
    decoder = decoder.bfloat16()
    assert distance(read(decoder, passes), read(prepare_for_generation(decoder), passes)) < 2**-4


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("width", [32, 40])
@pytest.mark.parametrize("to", ["int8", None])
def test_memory_left_by_an_earlier_call_is_not_read(name, width, to, make):
    decoder = make(name, width=width, head_width=width // 2, feedforward_width=width + 8)
    if to is not None:
        quantize_decoder(decoder, make_quantization(decoder, to))
    fused = prepare_for_generation(decoder)
    expected = read(fused)
    SCRATCH.memory.fill(float("nan"))
    assert torch.equal(read(fused), expected)


@pytest.mark.parametrize("to", ["int8", "int4"])
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_quantised_blocks_are_computed(to, name, make):
    decoder = make(name, width=32, head_width=16, feedforward_width=64)
    quantize_decoder(decoder, make_quantization(decoder, to))
    fused = prepare_for_generation(decoder)
    assert is_fused(fused)
    # int4: rounding of 1 + integer / 16, six times as large as the weights, in all layers one after the other
    assert distance(read(decoder), read(fused)) < (1e-5 if to == "int8" else 2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_chunks_other_rows_and_threads_do_not_change_a_bit(dtype, make):
    fused = prepare_for_generation(make("mistral").to(dtype))
    whole = read(fused, (8, 1))
    torch.set_num_threads(1)
    parts = read(fused, (3, 2, 3, 1))
    assert torch.equal(whole[:9], parts[:9])


def test_calls_that_the_function_cannot_compute_are_left_to_the_modules(make, monkeypatch):
    decoder = make("gpt2")
    fused, ids = prepare_for_generation(decoder), torch.tensor([[1, 2, 3]])
    expected = read(decoder)
    monkeypatch.setattr(fused_pass, "step_of", lambda *_: pytest.fail("a block runs as a program"))
    torch.testing.assert_close(fused(ids), decoder(ids))  # no paged cache, and gradients
    for block in list[Any](fused.trunk.blocks):
        block.max_rows = 0
    torch.testing.assert_close(read(fused), expected)


def test_hooks_that_come_later_see_their_modules(make):
    decoder, calls = make("gpt2"), list[str]()
    fused = prepare_for_generation(decoder)
    decoder.get_submodule("trunk.blocks.1.attention.query").register_forward_hook(lambda *_: calls.append("query"))
    expected = read(fused)
    assert len(calls) == len(PASSES)
    assert distance(expected, read(decoder)) < 1e-5


def test_changed_weights_are_used(make):
    decoder = make("gpt2")
    fused = prepare_for_generation(decoder)
    with torch.no_grad():
        layer: Any = decoder.get_submodule("trunk.blocks.0.attention_norm")
        layer.weight.mul_(2)
    assert distance(read(decoder), read(fused)) < 1e-5


def test_blocks_with_other_modules_are_left_as_they_are(make):
    decoder = make("gpt2")
    replace(decoder, "trunk.blocks.0.attention.query", with_low_rank)
    replace(decoder, "trunk.blocks.1.feedforward.activation", lambda layer: nn.Tanh())
    fused = prepare_for_generation(decoder)
    assert not any(isinstance(block, FusedBlock) for block in fused.trunk.blocks)
    assert distance(read(decoder), read(fused)) < 1e-5


@pytest.mark.parametrize(("family", "name", "value"), [("gpt2", "window", 2), ("parallel", "count", 1)])
def test_a_wrong_block_is_detected(family, name, value, make):
    decoder = make(family)
    fused = prepare_for_generation(decoder)
    block: Any = fused.trunk.blocks[1]
    block.program.operations[name] = value
    assert distance(read(decoder), read(fused)) > 1e-3


def program_of(block: nn.Module) -> Program:
    assert isinstance(block, FusedBlock)
    return block.program


def test_hooks_on_a_copy_leave_the_original_fused(
    make: Callable[..., Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy shares the packed weights; its values are those of hooks on the original."""
    runs: list[Program] = []
    run = Program.run
    monkeypatch.setattr(Program, "run", lambda self, *given: runs.append(self) or run(self, *given))
    fast = prepare_for_generation(make("gpt2"), wait=True)
    assert is_fused(fast)
    expected, num_runs = read(fast), len(runs)
    copy = copy_with_own_hooks(fast)
    assert torch.equal(read(copy), expected)
    blocks = [program_of(block) for block in copy.trunk.blocks]
    assert blocks == [program_of(block) for block in fast.trunk.blocks]
    path, seen = "trunk.blocks.0.attention.query", list[Tensor]()
    copy.get_submodule(path).register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
    runs.clear()
    assert torch.equal(read(fast), expected)
    assert (len(runs), seen) == (num_runs, [])
    runs.clear()
    watched = read(copy)
    assert blocks[0] not in runs
    assert blocks[1] in runs
    with Trace(fast, path) as trace:
        assert torch.equal(read(fast), watched)
    assert all(torch.equal(one, other) for one, other in zip(seen, trace.calls(path), strict=True))


@pytest.mark.skipif(not HAS_VNNI, reason="needs a processor with VNNI")
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("to", ["int8", "int4"])
@torch.no_grad()
def test_many_rows_are_read_on_the_packed_weights(name, to, make, monkeypatch):
    monkeypatch.setattr(matmul, "fastest_unit", lambda *matrix: "dots")
    monkeypatch.setattr(fast_linear, "is_bfloat16_slow", lambda: True)
    decoder = make(name, **WHOLE, context_length=96)
    quantize_decoder(decoder, make_quantization(decoder, to, 32))
    exact = read(decoder, (40,))  # 80 rows, in float32
    fused = prepare_for_generation(decoder.bfloat16())
    for layer in fused.trunk.blocks[0].modules():
        if isinstance(layer, QuantizedLinear):
            assert isinstance(layer, FastForward)
            addresses = [part.matmul.matrix.words.untyped_storage().data_ptr() for part in joined_weights(fused)]
            assert layer.fast.matmul.matrix.words.untyped_storage().data_ptr() in addresses
            x = torch.randn(80, layer.in_features).bfloat16()
            product = x.float() @ layer.rows(slice(None)).T + (0 if layer.bias is None else layer.bias)
            assert distance(product, layer(x)) < 2**-8
    assert (read(fused, (40,)) - exact).norm() < 1.5 * (read(decoder, (40,)) - exact).norm()


def joined_weights(decoder: Decoder) -> list[FastWeight]:
    block: Any = decoder.trunk.blocks[0]
    return [weight for _, _, weight in block.program.groups]

"""Passes in one compiled program: equal to the modules, and left to them where something could be seen or changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foretell.errors import ContextLengthError
from foretell.model.cpu_matmul import CPULinear
from foretell.model.decoder import Decoder
from foretell.model.kernels.fast_decoder import find_obstacle, prepare_for_generation
from foretell.model.norm import RMSNorm
from foretell.model.paged_cache import PagedKVCache, PagedKVView, PagedRow
from foretell.model.quantize_decoder import make_quantization, quantize_decoder
from foretell.model.surgery import copy_with, copy_with_own_hooks, recast, replace
from foretell.model.transformer import Block

pytest.importorskip("numba")

from foretell.model.kernels.fused_pass import FusedDecoder
from foretell.model.kernels.operations import ADD, ATTEND, COPY, NORM
from foretell.model.kernels.program import Program
from foretell.model.kernels.threads import SCRATCH
from tests.model.test_fused_block import FUSABLE, PASSES, TABLES, WHOLE, distance, make, with_low_rank

__all__ = ["make"]  # a fixture


@torch.inference_mode()
def read(decoder: Decoder, passes: tuple[int, ...] = PASSES, last: int | None = None) -> Tensor:
    """The logits of all tokens, or the last ones of each pass, of two rows that are read in these passes."""
    cache = PagedKVCache(decoder.config, 64, decoder.dtype, "cpu")
    ids = torch.randint(decoder.config.vocab_size, (2, sum(passes)), generator=torch.Generator().manual_seed(1))
    tables = ([*TABLES[0], *range(7, 30)], [*TABLES[1], *range(30, 53)])
    starts, logits = [0, 0], list[Tensor]()
    for length in passes:
        counts = [length, max(1, length - 1)]
        rows = [PagedRow(*row) for row in zip(tables, starts, counts, strict=True)]
        new = torch.stack([row[start : start + length] for row, start in zip(ids, starts, strict=True)])
        wanted = counts if last is None else [min(last, count) for count in counts]
        logits += decoder.last_logits(new, PagedKVView(cache, rows), counts, wanted)
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    return torch.cat(logits)


def count_starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks each program computes that has any, from now on."""
    started, run = list[int](), Program.run

    def count_and_run(program: Program, *given: Any, **named: Any) -> None:
        blocks = int(np.count_nonzero(program.operations["kind"] == ATTEND))
        started.extend([blocks] if blocks else [])
        run(program, *given, **named)

    monkeypatch.setattr(Program, "run", count_and_run)
    return started


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return count_starts(monkeypatch)


@pytest.mark.parametrize("name", FUSABLE)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_pass_computes_what_its_modules_do(name, threads, make, started):
    torch.set_num_threads(threads)
    decoder = make(name)
    assert distance(read(decoder), read(prepare_for_generation(decoder))) < 1e-5
    assert started == [decoder.config.num_layers] * len(PASSES)
    decoder = decoder.bfloat16()
    assert distance(read(decoder), read(prepare_for_generation(decoder))) < 2**-4  # the head rounds too


@pytest.mark.parametrize(("to", "head"), [("int8", "int8"), ("int4", "int8"), ("int4", "int4")])
@pytest.mark.parametrize("name", ["gpt2", "qwen3", "gemma3", "sinusoidal, norm after"])
def test_quantised_passes_are_computed(to, head, name, make, started):
    decoder = make(name, width=32, head_width=16, feedforward_width=64)
    quantize_decoder(decoder, make_quantization(decoder, to, head=head))
    # int4: rounding of 1 + integer / 16, six times as large as the weights, in all layers one after the other
    assert distance(read(decoder), read(prepare_for_generation(decoder))) < (1e-5 if to == "int8" else 2e-4)
    assert started == [2] * len(PASSES)


@pytest.mark.parametrize("sizes", [(48, 1, 48, 50), (40, 5, 8, 33), (64, 4, 20, 7)])
def test_odd_sizes_are_computed_and_earlier_memory_is_not_read(sizes, make):
    width, heads, head_width, inner = sizes
    changes = {"width": width, "num_heads": heads, "head_width": head_width, "feedforward_width": inner}
    decoder = make("llama", **changes, num_kv_heads=1)
    fused = prepare_for_generation(decoder)
    expected = read(fused)
    assert distance(read(decoder), expected) < 1e-5
    SCRATCH.memory.fill(float("nan"))
    assert torch.equal(read(fused), expected)


@pytest.mark.parametrize("name", ["llama", "gemma3", "half rotated", "sinusoidal, norm after"])
def test_positions_far_from_the_first_are_computed(name, make, started):
    decoder, passes = make(name, context_length=700), (20,) * 30 + (1,)
    assert distance(read(decoder, passes, last=1), read(prepare_for_generation(decoder), passes, last=1)) < 1e-4
    assert len(started) == len(passes)


@pytest.mark.parametrize("last", [1, 2])
def test_logits_of_some_tokens_are_the_same(last, make):
    fused = prepare_for_generation(make("gpt2"))
    both, some = read(fused, (3,)), read(fused, (3,), last)  # of 3 and 2 tokens
    assert torch.equal(some, torch.cat((both[3 - last : 3], both[5 - last :])))


def test_many_tokens_and_unknown_ids_are_left_to_the_modules(make, started):
    decoder = make("gpt2", context_length=96)
    fused = prepare_for_generation(decoder)
    assert distance(read(decoder, (40,)), read(fused, (40,))) < 1e-5
    cache, row = PagedKVCache(fused.config, 7, fused.dtype, "cpu"), PagedRow([1], 0, 1)
    with torch.inference_mode(), pytest.raises(IndexError):
        next(fused.last_logits(torch.tensor([[fused.config.vocab_size]]), PagedKVView(cache, [row]), [1], [1]))
    assert started == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama", "sinusoidal, norm after"])
def test_hooks_that_only_look_do_not_change_a_bit(name, dtype, make, started):
    decoder = make(name, **WHOLE).to(dtype)
    fused, seen = prepare_for_generation(decoder), set[str]()
    expected = read(fused)
    started.clear()
    for path in ("embed", "trunk.blocks.0", "trunk.blocks.1", "trunk.norm", "head"):
        fused.get_submodule(path).register_forward_hook(lambda *_, path=path: seen.add(path))
    assert torch.equal(read(fused), expected)
    assert started == [1] * 2 * len(PASSES)
    assert len(seen) == 5


def change_output(decoder: Decoder) -> None:
    decoder.trunk.blocks[1].register_forward_hook(lambda module, given, output: 2 * output)


def change_output_in_place(decoder: Decoder) -> None:
    decoder.trunk.blocks[1].register_forward_hook(lambda module, given, output: output.mul_(2))


def change_input(decoder: Decoder) -> None:
    decoder.trunk.blocks[2].register_forward_pre_hook(lambda module, given: (given[0] * 2, *given[1:]))


def change_embedding(decoder: Decoder) -> None:
    decoder.embed.token.register_forward_hook(lambda module, given, output: 2 * output)


def change_logits(decoder: Decoder) -> None:
    decoder.head.register_forward_pre_hook(lambda module, given: (2 * given[0],))


@torch.no_grad()
def change_weight(decoder: Decoder, path: str) -> None:
    decoder.get_parameter(path).mul_(3)


@torch.no_grad()
def test_tokens_that_compiled_code_cannot_read_are_left_to_the_modules(make):
    cases = (
        ("llama", torch.tensor([[1, 2, 3]], dtype=torch.int32), 0, None),
        ("llama", torch.arange(9)[None], 0, ContextLengthError),
        ("gpt2", torch.tensor([[1]]), 20, IndexError),  # a position after the table's end
        ("sinusoidal, norm after", torch.tensor([[1]]), 20, None),
    )
    for name, ids, start, error in cases:
        decoder = make(name, context_length=8)
        logits = []
        for each in (decoder, prepare_for_generation(decoder)):
            row = PagedRow([1, 2], start, ids.shape[1])
            view = PagedKVView(PagedKVCache(each.config, 3, each.dtype, "cpu"), [row])
            with nullcontext() if error is None else pytest.raises(error):
                logits += each.last_logits(ids, view, view.counts, view.counts)
        assert error is not None or distance(*logits) < 1e-5


def test_a_row_without_a_token_is_refused(make):
    fused = prepare_for_generation(make("llama"))
    view = PagedKVView(PagedKVCache(fused.config, 3, fused.dtype, "cpu"), [PagedRow([1], 0, 2), PagedRow([2], 0, 0)])
    with torch.no_grad(), pytest.raises(AssertionError):
        fused.last_logits(torch.ones(2, 2, dtype=torch.long), view, [2, 0], [2, 0])


def test_more_logits_than_tokens_are_refused(make):
    decoder = make("llama")
    for each in (decoder, prepare_for_generation(decoder)):
        view = PagedKVView(PagedKVCache(each.config, 3, each.dtype, "cpu"), [PagedRow([1], 0, 1)])
        with torch.no_grad(), pytest.raises(AssertionError):
            list(each.last_logits(torch.tensor([[1]]), view, [1], [3]))


def test_a_token_table_is_kept_when_the_parameter_gets_other_memory(make):
    decoder = make("gpt2")
    fused = prepare_for_generation(decoder)
    assert isinstance(fused, FusedDecoder)
    address = decoder.embed.token.weight.data_ptr()
    decoder.bfloat16()
    assert address in [part.data_ptr() for part in fused.program.kept if isinstance(part, Tensor)]


@pytest.mark.parametrize("name", ["gpt2", "sinusoidal, norm after"])
def test_hooks_on_positions_do_not_see_the_preparation_nor_outlive_their_removal(name, make):
    decoder, calls = make(name), list[int]()
    hook = decoder.get_submodule("embed.position").register_forward_hook(lambda *given: calls.append(1) or given[2] * 2)
    fused = prepare_for_generation(decoder)
    assert calls == []
    hook.remove()
    assert distance(read(decoder), read(fused)) < 1e-5


def test_dropout_of_the_embedding_is_applied_in_training(make):
    decoder = make("gpt2", dropout={"embedding": 0.5}).eval()
    fused = prepare_for_generation(decoder)
    expected = read(fused)
    decoder.get_submodule("embed.dropout").train()
    assert distance(read(decoder), expected) > 1e-2
    assert distance(read(decoder), read(fused)) < 1e-5


def test_embeddings_of_other_forms_are_computed(make):
    strided, small, replaced = make("gpt2"), make("gpt2", tie_embeddings=False), make("gpt2")
    strided.embed.token.weight = nn.Parameter(strided.embed.token.weight.t().contiguous().t(), requires_grad=False)
    replace(replaced, "embed.dropout", Doubled)
    for decoder in (strided, replaced):
        assert distance(read(decoder), read(prepare_for_generation(decoder))) < 1e-5
    small.embed.token = nn.Embedding.from_pretrained(small.embed.token.weight[:2].clone())
    with pytest.raises(IndexError):
        read(prepare_for_generation(small))


@pytest.mark.parametrize("path", ["trunk.norm", "trunk.blocks.0.attention_norm"])
def test_norms_with_weights_of_inference_mode_are_left_to_the_modules(path, make):
    decoder = make("gpt2")
    norm: Any = decoder.get_submodule(path)
    with torch.inference_mode():
        norm.weight = nn.Parameter(norm.weight * 3, requires_grad=False)
    assert distance(read(decoder), read(prepare_for_generation(decoder))) < 1e-5


def test_threads_get_angles_of_all_their_positions(make):
    fused: Any = prepare_for_generation(make("llama", context_length=2000))

    def store_few(self: nn.Module, name: str, value: Any) -> None:
        """Another thread stores fewer angles right after this one has stored its own."""
        nn.Module.__setattr__(self, name, few if name == "angles" else value)

    few = fused.angles_until(10)
    assert few[0].shape[2] == 256
    fused.__class__ = type("Interrupted", (type(fused),), {"__setattr__": store_few})
    assert fused.angles_until(1500)[0].shape[2] == 2000  # at most the context


def test_deep_copies_are_refused_or_have_their_own_addresses(make):
    fused: Any = prepare_for_generation(make("gpt2"))
    with pytest.raises(TypeError, match="copy the plain one"):
        deepcopy(fused)
    matmul = fused.head.fast.matmul
    copied = deepcopy(matmul)
    assert matmul.record["words"] == matmul.matrix.words.data_ptr() != copied.matrix.words.data_ptr()
    assert copied.record["words"] == copied.matrix.words.data_ptr()


class Doubled(nn.Module):
    """A layer whose output is doubled."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *given: Any) -> Tensor:
        return self.inner(*given) * 2


WEIGHTS = ("trunk.blocks.2.attention_norm.weight", "embed.token.weight", "embed.position.weight", "trunk.norm.bias")
CHANGES: list[Callable[[Decoder], Any]] = [
    *(change_output, change_output_in_place, change_input, change_embedding, change_logits),
    *(partial(change_weight, path=path) for path in WEIGHTS),
    *(partial(replace, glob=path, make=Doubled) for path in ("embed.dropout", "trunk.blocks.1.attention.core")),
]


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_the_original_decoder_are_seen(change, make):
    decoder = make("gpt2", num_layers=5, **WHOLE)
    fused = prepare_for_generation(decoder)
    unchanged = read(fused)
    change(decoder)  # whose hooks, weights and inner modules the other has too
    assert distance(read(decoder), unchanged) > 1e-2
    assert distance(read(decoder), read(fused)) < 1e-4


@pytest.mark.parametrize("path", ["attention.query", "attention.output", "attention_norm", "feedforward.down"])
def test_a_module_of_a_fused_block_that_is_replaced_later_is_used(path, make):
    decoder = make("gpt2", **WHOLE)
    fused = prepare_for_generation(decoder)
    for each in (decoder, fused):
        each.set_submodule(f"trunk.blocks.1.{path}", Doubled(each.get_submodule(f"trunk.blocks.1.{path}")))
    assert distance(read(decoder), read(fused)) < 1e-5


@pytest.mark.parametrize("path", ["trunk.blocks.2", "trunk.norm", "head"])
def test_a_module_that_is_replaced_later_is_used(path, make):
    decoder = make("gpt2", num_layers=4, **WHOLE)
    fused = prepare_for_generation(decoder)
    changed = copy_with(fused, {path: Doubled(fused.get_submodule(path))})
    unchanged = read(fused)
    replace(decoder, path, Doubled)
    assert distance(read(decoder), unchanged) > 1e-2
    assert distance(read(decoder), read(changed)) < 1e-5
    replace(fused, path, Doubled)
    assert distance(read(decoder), read(fused)) < 1e-5


def test_hooks_of_all_modules_see_them_and_may_change_a_stream_in_place(make):
    seen = set[type[nn.Module]]()

    def double(module: nn.Module, given: Any, output: Any) -> None:
        seen.add(type(module))
        if isinstance(module, Block):
            output.mul_(2)

    decoder = make("gpt2", num_layers=4, **WHOLE)
    fused = prepare_for_generation(decoder)
    hook = nn.modules.module.register_module_forward_hook(double)
    try:
        expected = read(decoder)
        seen.clear()
        assert distance(expected, read(fused)) < 1e-5
        assert CPULinear in seen  # a module inside of a block
    finally:
        hook.remove()


@pytest.mark.parametrize(("kind", "wrong"), [(NORM, COPY), (ADD, COPY)])
def test_a_wrong_operation_is_detected(kind, wrong, make):
    decoder = make("gpt2")
    fused = prepare_for_generation(decoder)
    assert isinstance(fused, FusedDecoder)
    operations = fused.program.operations
    operations["kind"][np.flatnonzero(operations["kind"] == kind)[0]] = wrong  # the first norm; adding the position
    assert distance(read(decoder), read(fused)) > 1e-3


def test_hooks_on_a_copy_leave_the_original_fused(
    make: Callable[..., Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[FusedDecoder] = []
    run = FusedDecoder.run
    monkeypatch.setattr(FusedDecoder, "run", lambda self, *given: runs.append(self) or run(self, *given))
    fast = prepare_for_generation(make("gpt2"), wait=True)
    copy = copy_with_own_hooks(fast)
    assert isinstance(fast, FusedDecoder) and isinstance(copy, FusedDecoder)
    expected = read(fast)
    assert torch.equal(read(copy), expected)
    assert set(runs) == {fast, copy}
    copy.get_submodule("trunk.blocks.0.attention.query").register_forward_hook(lambda *_: torch.zeros(()))
    runs.clear()
    assert torch.equal(read(fast), expected)
    assert runs == [fast] * len(PASSES)


def test_a_copy_is_freed_with_its_last_user(make: Callable[..., Decoder], without_collections: None) -> None:
    fast = prepare_for_generation(make("gpt2"), wait=True)
    copy = copy_with_own_hooks(fast)
    read(copy)
    left = ref(copy.trunk.blocks[0])
    del copy
    assert left() is None


class OtherNorm(RMSNorm):
    """A subclass, which has no operation."""


class SameNorm(RMSNorm):
    """A subclass that declares that it computes the same."""

    operation = RMSNorm.operation


def recast_first_norm(decoder: Decoder, kind: type[nn.Module]) -> None:
    replace(decoder, "trunk.blocks.0.attention_norm", lambda norm: recast(norm, kind))


OBSTACLES: dict[str, tuple[Callable[[Decoder], Any], str, str]] = {
    "an adapter": (
        lambda decoder: replace(decoder, "trunk.blocks.1.attention.query", with_low_rank),
        "trunk.blocks.1.attention.query",
        "LoRALinear has no operation",
    ),
    "another activation": (
        lambda decoder: replace(decoder, "trunk.blocks.0.feedforward.activation", lambda layer: nn.Tanh()),
        "trunk.blocks.0.feedforward.activation",
        "Tanh has no operation",
    ),
    "a subclass": (
        lambda decoder: recast_first_norm(decoder, OtherNorm),
        "trunk.blocks.0.attention_norm",
        "OtherNorm has no operation",
    ),
    "another rotation": (
        lambda decoder: setattr(decoder.trunk.blocks[1].attention, "rotate", lambda heads, rotation: -heads),
        "trunk.blocks.1.attention",
        "its function rotate has no operation",
    ),
    "a hook": (
        lambda decoder: decoder.head.register_forward_hook(lambda *_: None),
        "head",
        "it has a hook",
    ),
    "training": (
        lambda decoder: decoder.get_submodule("trunk.blocks.1.feedforward").train(),
        "trunk.blocks.1.feedforward",
        "it is in training mode",
    ),
    "another dtype": (
        lambda decoder: decoder.get_submodule("trunk.blocks.1.feedforward.down").bfloat16(),
        "trunk.blocks.1.feedforward.down",
        "it computes in torch.bfloat16, modules before it in torch.float32",
    ),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_the_module_that_ends_a_program_is_named(name, make):
    change, path, reason = OBSTACLES[name]
    decoder = make("llama").eval()
    assert find_obstacle(decoder) is None
    change(decoder)
    assert find_obstacle(decoder) == {"path": path, "reason": reason}


def test_a_class_needs_only_an_operation_to_be_part_of_a_program(make, started):
    decoder = make("llama").eval()
    recast_first_norm(decoder, SameNorm)
    assert distance(read(decoder), read(prepare_for_generation(decoder))) < 1e-5
    assert started == [decoder.config.num_layers] * len(PASSES)


@pytest.mark.parametrize("kept", ["**.attention.value", "**.feedforward.up", "trunk.blocks.1.**"])
def test_layers_in_different_forms_are_computed(kept, make, started):
    decoder = make("llama", width=32, head_width=16, feedforward_width=64)
    quantize_decoder(decoder, make_quantization(decoder, "int8", keep=[kept]))
    assert distance(read(decoder), read(prepare_for_generation(decoder))) < 1e-5
    assert started == [decoder.config.num_layers] * len(PASSES)


@pytest.mark.parametrize("name", FUSABLE)
def test_a_block_has_at_most_eleven_phases(name, make):
    fused = prepare_for_generation(make(name))
    assert isinstance(fused, FusedDecoder)
    assert fused.program.phases <= 11 * fused.config.num_layers + 2  # and the head's

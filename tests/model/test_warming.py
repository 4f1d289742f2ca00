"""Generations do not wait for kernels, which a background process compiles."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

pytest.importorskip("numba")

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.errors import UsageError
from foretell.generation.batch_generation import generate
from foretell.generation.engine import Engine
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.kernels import compiling, fast_decoder, warming
from foretell.model.kernels.fast_decoder import prepare_for_generation
from foretell.model.kernels.fused_pass import FusedDecoder
from foretell.model.kernels.onednn_linear import PackedLinear
from foretell.model.quantize_decoder import make_quantization, quantize_decoder


def model(dtype: torch.dtype = torch.float32) -> Decoder:
    sizes = {"num_layers": 2, "num_heads": 2, "width": 32, "context_length": 64, "vocab_size": 50}
    config = make_section(ModelConfig, sizes)
    return make_decoder(config, seed=1).eval().to(dtype)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """No kernel is compiled; returns the names that would be compiled in the background."""
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(compiling, "CACHE", str(tmp_path))
    monkeypatch.setenv(warming.MODE, "background")
    monkeypatch.setattr(warming, "compile_in_background", started.append)
    return started


def is_fused(decoder: Decoder) -> bool:
    return isinstance(decoder, FusedDecoder)


def kinds(decoder: Decoder) -> set[type]:
    return {type(module) for module in decoder.modules()}


def test_a_decoder_names_the_kernels_of_its_matrices_and_blocks() -> None:
    names = warming.needed_kernels(model())
    assert names == [
        "32 bits, vectors",
        "linear layers",
        "threads",
        "passes over few tokens",
        "activations",
        "sums of softmax",
    ]
    decoder = model(torch.bfloat16)
    quantize_decoder(decoder, make_quantization(decoder, "int8", keep=["trunk.blocks.0.**"]))
    bits = {name.partition(" ")[0] for name in warming.needed_kernels(decoder) if " bits, " in name}
    assert bits == {"8", "16"}


def test_every_kernel_that_a_prepared_decoder_uses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    monkeypatch.setattr(warming, "compiled_kernel", lambda *kernel: used.append(warming.name_of(kernel)))
    monkeypatch.setattr(compiling, "mark_as_compiled", lambda name: None)
    names = [name for name in warming.needed_kernels(model()) if " bits, " in name]
    assert list(warming.compile_kernels(names)) == names == used


def test_a_generation_whose_kernels_are_missing_runs_without_them(
    empty_cache: list[tuple[str, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    decoder = model()
    assert PackedLinear in kinds(prepare_for_generation(decoder))
    assert empty_cache == [tuple(warming.needed_kernels(decoder))]
    for name in warming.needed_kernels(decoder):
        compiling.mark_as_compiled(name)
    assert is_fused(prepare_for_generation(decoder))
    assert len(empty_cache) == 1


def test_wait_compiles_first_and_says_so(
    empty_cache: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(warming.MODE, "wait")
    monkeypatch.setattr(warming, "compile_kernel", compiling.mark_as_compiled)
    with caplog.at_level(logging.INFO, "foretell"):
        assert is_fused(prepare_for_generation(model()))
        prepare_for_generation(model())
    assert [record.message.partition(" (")[0] for record in caplog.records] == ["compiling kernels"]
    assert not empty_cache


def test_off_uses_no_kernels_and_another_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(warming.MODE, "off")
    assert PackedLinear in kinds(prepare_for_generation(model()))
    monkeypatch.setenv(warming.MODE, "later")
    with pytest.raises(UsageError, match="FORETELL_KERNELS='later' is unknown"):
        prepare_for_generation(model())


def test_code_that_cannot_be_kept_is_not_compiled(
    empty_cache: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "CACHE", str(compiling.private_folder()))
    fast_decoder.tell_once.cache_clear()
    assert PackedLinear in kinds(prepare_for_generation(model()))
    assert not empty_cache
    assert "no folder for compiled code" in caplog.records[0].message


def test_the_background_process_compiles_into_the_cache() -> None:
    warming.compile_in_background.cache_clear()
    warming.compile_in_background(("threads",))
    process = warming.STARTED.pop()
    assert process.wait() == 0
    assert compiling.is_compiled("threads")


@pytest.mark.parametrize("is_small", [True, False], ids=["small", "large"])
def test_an_engine_prepares_its_decoder_in_the_first_passes_and_again_when_kernels_are_there(
    monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    decoder, forms, is_compiling = model(), iter(range(9)), iter([True, True, False, False])
    monkeypatch.setattr("foretell.generation.engine.prepare_for_generation", lambda *_: next(forms))
    monkeypatch.setattr("foretell.generation.engine.is_compiling", lambda: next(is_compiling))
    monkeypatch.setattr("foretell.generation.engine.is_small", lambda _: is_small)
    engine = Engine(decoder, 1)
    prompts = (True, False, False, True, True, False)
    asked = [[Sequence([1, 2], num_cached=0 if is_prompt else 2)] for is_prompt in prompts]
    assert [engine._prepare(sequences) for sequences in asked] == [decoder if is_small else 0, 0, 0, 0, 1, 1]


def test_texts_are_the_same_with_the_first_pass_in_plain_modules() -> None:
    decoder = model()

    def tokens(max_tokens: int) -> list[int]:
        sampler = Sampler(SamplingConfig(temperature=0))
        return [event.token for event in generate(decoder, [Sequence([1, 2, 3])], sampler, max_tokens)]

    short = tokens(fast_decoder.MIN_TOKENS - 1)  # which is not prepared
    assert tokens(fast_decoder.MIN_TOKENS + 8)[: len(short)] == short

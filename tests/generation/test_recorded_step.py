"""A recorded step repeats operations on the same tensors, and gives the tokens of steps that are not recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from foretell.config import ModelConfig, SamplingConfig, make_section
from foretell.generation import engine
from foretell.generation.batch_generation import generate
from foretell.generation.engine import can_record
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder
from foretell.model.paged_cache import PagedKVCache, StaticPagedKVView

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [3, 2, 1]]
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "qwen3": {"position": "rotary", "norm": "rmsnorm", "qk_norm": True, "num_kv_heads": 1},
    "windows": {"position": "sinusoidal", "window": (None, 3)},
    "explicit core": {"position": "rotary", "dropout": {"attention": 0.1}, "window": 4},
}


class Tape(TorchDispatchMode):
    """What a CUDA graph does, on a CPU: the operations of one run, with their numbers and on their tensors, again.

    Like a graph it refuses to read a value, or to make a tensor from numbers of the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        assert func not in (aten._local_scalar_dense.default, aten.lift_fresh.default, aten.nonzero.default), func
        output = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, output))
        return output

    def replay(self) -> None:
        for func, args, kwargs, output in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tensors(output), tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():  # neither in place nor a view
                    old.copy_(new)


def tensors(output: Any) -> list[Tensor]:
    several = output if isinstance(output, (tuple, list)) else [output]
    return [value for value in several if isinstance(value, Tensor)]


def record_tape(step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    step()
    with Tape() as tape:
        output = step()
    return tape.replay, output


@pytest.fixture(params=MODELS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """Strong random weights, so that the next token depends on everything before it."""
    sizes = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 16, "vocab_size": 23}
    decoder = Decoder(make_section(ModelConfig, {**sizes, **MODELS[request.param]})).double().eval()
    generator = torch.Generator().manual_seed(2)
    for parameter in decoder.requires_grad_(False).parameters():
        parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return decoder


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Generations record their steps; a 1 for every recording."""
    count: list[int] = []

    def record(step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        count.append(1)
        return record_tape(step)

    monkeypatch.setattr(engine, "record_graph", record)
    monkeypatch.setattr(engine, "can_record", lambda decoder, max_tokens: True)
    return count


def continuations(decoder: Decoder, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    sequences = [Sequence(prompt, sample) for sample, prompt in enumerate(prompts)]
    sampler = Sampler(SamplingConfig(temperature=1.5, top_k=15, seed=4))
    for _ in generate(decoder, sequences, sampler, 14 if options.get("slide") else 9, **options):
        pass
    return [sequence.generated for sequence in sequences]


@pytest.mark.parametrize("case", ["one row", "uneven rows", "rows that end", "shifted rows"])
def test_recorded_steps_give_the_same_tokens(case: str, decoder: Decoder, request: pytest.FixtureRequest) -> None:
    prompts = PROMPTS[:1] if case == "one row" else PROMPTS
    end = continuations(decoder, prompts)[0][3] if case == "rows that end" else None
    options = {"end_ids": () if end is None else [end], "slide": case == "shifted rows"}
    expected = continuations(decoder, prompts, **options)
    recordings = request.getfixturevalue("recordings")
    assert continuations(decoder, prompts, **options) == expected
    assert len(recordings) >= (2 if case in ("rows that end", "shifted rows") else 1)


def test_a_step_that_depends_on_the_length_of_a_row_is_noticed(
    decoder: Decoder, recordings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = continuations(decoder, PROMPTS[:1])

    def with_fixed_positions(cache: PagedKVCache, tables: Tensor, positions: Tensor) -> StaticPagedKVView:
        return StaticPagedKVView(cache, tables, positions * 0 + 3)

    monkeypatch.setattr(engine, "StaticPagedKVView", with_fixed_positions)
    assert continuations(decoder, PROMPTS[:1]) != expected


def test_where_recording_fails_the_log_says_why_and_steps_are_taken_one_by_one(
    decoder: Decoder, recordings: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = continuations(decoder, PROMPTS)

    def fail(step: Callable[[], Tensor]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might be")

    monkeypatch.setattr(engine, "record_graph", fail)
    with caplog.at_level(logging.WARNING, logger="foretell"):
        assert continuations(decoder, PROMPTS) == expected
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("steps are not recorded as a CUDA graph: operation not permitted")
    assert "\n" not in line


def test_nothing_is_recorded_on_a_cpu(decoder: Decoder) -> None:
    assert not can_record(decoder, None)

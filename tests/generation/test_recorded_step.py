"""A recorded step repeats operations on the same tensors, and gives the tokens of steps that are not recorded."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.generation import recorded_step
from foretell.generation.batch_generation import generate, make_scheduler, run
from foretell.generation.engine import Engine
from foretell.generation.recorded_step import (
    STEPS_KEPT,
    ReadingHook,
    RecordedStep,
    StepRecorder,
    can_record,
    has_inner_hooks,
    rounded_up,
    stream_modules,
)
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules, Sequence
from foretell.model.decoder import Decoder
from foretell.model.paged_cache import PADDING_BLOCK, PagedKVCache, PagedRow, StaticPagedKVView
from foretell.translation.batches import make_source
from foretell.translation.config import VASWANI, EncoderDecoderConfig
from foretell.translation.encoder_decoder import EncoderDecoder
from tests.toy import with_large_weights

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
    return make_decoder(**MODELS[request.param])


def make_decoder(**settings: Any) -> Decoder:
    """Strong random weights, so that the next token depends on everything before it."""
    sizes = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 16, "vocab_size": 23}
    decoder = Decoder(make_section(ModelConfig, {**sizes, **settings})).double()
    return with_large_weights(decoder, seed=2).requires_grad_(False)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Generations record their steps; the rows and the blocks of each row of every recording."""
    shapes: list[tuple[int, int]] = []

    def record(step: Any) -> tuple[Callable[[], None], Tensor]:
        num_rows, num_blocks = step.__self__.blocks.shape
        shapes.append((num_rows, num_blocks))
        return record_tape(step)

    monkeypatch.setattr(recorded_step, "graph_recorder", lambda: record)
    monkeypatch.setattr(recorded_step, "can_record", lambda decoder, max_tokens: True)
    return shapes


def continuations(decoder: Decoder, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    sequences = [Sequence(prompt, sample) for sample, prompt in enumerate(prompts)]
    sampler = Sampler(SamplingConfig(temperature=1.5, top_k=15, seed=4))
    list(generate(decoder, sequences, sampler, 14 if options.get("slide") else 9, **options))
    return [sequence.generated for sequence in sequences]


@pytest.mark.parametrize("case", ["one row", "uneven rows", "rows that end", "shifted rows"])
def test_recorded_steps_give_the_same_tokens(case: str, decoder: Decoder, request: pytest.FixtureRequest) -> None:
    prompts = PROMPTS[:1] if case == "one row" else PROMPTS
    end = continuations(decoder, prompts)[0][3] if case == "rows that end" else None
    options = {"end_ids": () if end is None else [end], "slide": case == "shifted rows"}
    expected = continuations(decoder, prompts, **options)
    recordings = request.getfixturevalue("recordings")
    assert continuations(decoder, prompts, **options) == expected
    assert recordings[0] == (1 if case == "one row" else 4, 1)
    assert len(recordings) == len(set(recordings))  # rows that end or are shifted are not a reason to record again
    assert len(recordings) == 1 or case in ("rows that end", "shifted rows")


def test_a_step_that_depends_on_the_length_of_a_row_is_noticed(
    decoder: Decoder, recordings: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = continuations(decoder, PROMPTS[:1])

    def with_fixed_positions(cache: PagedKVCache, tables: Tensor, positions: Tensor) -> StaticPagedKVView:
        return StaticPagedKVView(cache, tables, positions * 0 + 3)

    monkeypatch.setattr(recorded_step, "StaticPagedKVView", with_fixed_positions)
    assert continuations(decoder, PROMPTS[:1]) != expected


def test_where_recording_fails_the_log_says_why_and_steps_are_taken_one_by_one(
    decoder: Decoder,
    recordings: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = continuations(decoder, PROMPTS)

    def fail(step: Callable[[], Tensor]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might be")

    monkeypatch.setattr(recorded_step, "graph_recorder", lambda: fail)
    with caplog.at_level(logging.WARNING, logger="foretell"):
        assert continuations(decoder, PROMPTS) == expected
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("cannot capture decoding as a CUDA graph: operation not permitted")
    assert "\n" not in line


class StreamOf(ReadingHook):
    """Copies of the stream of each sequence of a scheduler, by its sample and in the order of the calls."""

    def __init__(self, scheduler: Scheduler):
        self.engine, self.found = scheduler.engine, dict[int, list[Tensor]]()

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        for row, (sequence, count) in enumerate(self.engine.reading):
            self.found.setdefault(sequence.sample, []).append(output[row, :count].clone())


def test_hooks_that_only_read_get_the_stream_of_recorded_steps(
    decoder: Decoder, request: pytest.FixtureRequest
) -> None:
    def streams() -> dict[int, list[Tensor]]:
        scheduler, sampler = Scheduler(decoder), Sampler(SamplingConfig(temperature=1.5, seed=4))
        hook = StreamOf(scheduler)
        handles = [module.register_forward_hook(hook) for module in stream_modules(decoder)]
        sequences = [Sequence(prompt, sample, rules=Rules(sampler, 6)) for sample, prompt in enumerate(PROMPTS)]
        list(run(scheduler, sequences))
        for handle in handles:
            handle.remove()
        return hook.found

    expected = streams()
    recordings = request.getfixturevalue("recordings")
    found = streams()
    assert recordings
    assert found.keys() == expected.keys()
    for sample, parts in expected.items():
        torch.testing.assert_close(torch.cat(found[sample]), torch.cat(parts), rtol=1e-12, atol=1e-12)


def test_steps_are_not_recorded_with_hooks_that_a_replay_would_not_call(decoder: Decoder) -> None:
    reading, (embed, *blocks) = StreamOf(Scheduler(decoder)), stream_modules(decoder)
    assert not has_inner_hooks(decoder)
    inside: Any = blocks[0].attention
    registrations: list[tuple[Any, bool]] = [
        (embed.register_forward_hook, False),
        (blocks[1].register_forward_hook, False),
        (blocks[1].register_forward_pre_hook, True),
        (inside.register_forward_hook, True),
    ]
    for register, is_inner in registrations:
        handle = register(reading)
        assert has_inner_hooks(decoder) == is_inner, register
        handle.remove()


def test_while_a_hook_changes_the_stream_no_step_is_replayed(
    decoder: Decoder, recordings: list[tuple[int, int]]
) -> None:
    recorder = StepRecorder(decoder, PagedKVCache(decoder.config, 3, torch.float64, "cpu"), None)
    rows: tuple[list[PagedRow], list[int | None]] = [PagedRow([1], 3, 1)], [None]
    for replaced in range(2):  # before and after the step was recorded
        handle = decoder.trunk.blocks[replaced].register_forward_hook(lambda module, inputs, output: output + 1)
        assert recorder.step_for(*rows) is None
        handle.remove()
        assert recorder.step_for(*rows) is not None
    assert len(recordings) == 1


def test_nothing_is_recorded_on_a_cpu(decoder: Decoder) -> None:
    assert not can_record(decoder, None)


@pytest.mark.parametrize("count, size", [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16), (17, 24), (250, 256)])
def test_rows_and_blocks_are_rounded_up(count: int, size: int) -> None:
    assert rounded_up(count) == size


def coming_and_going(
    decoder: Decoder, lengths: list[int], at_once: int, spoil: bool = False, **options: Any
) -> tuple[list[list[int]], list[int]]:
    """The tokens of sequences that join one after the other, and the numbers of blocks that they had."""
    scheduler, sampler = Scheduler(decoder, **options), Sampler(SamplingConfig(temperature=1.5, seed=4))
    sequences = [Sequence([1 + row, 2, 3], row, rules=Rules(sampler, length)) for row, length in enumerate(lengths)]
    waiting, num_blocks = list(sequences), list[int]()
    while waiting or scheduler.is_busy:
        for _ in range(1 if scheduler.is_busy else at_once):
            if waiting:
                scheduler.add(waiting.pop(0))
        if spoil:
            for pool in (scheduler.engine.cache.keys, scheduler.engine.cache.values):
                pool[:, :, PADDING_BLOCK] = torch.nan
        scheduler.step()
        num_blocks += [len(sequence.table.blocks) for sequence in sequences if sequence.table is not None]
    return [sequence.generated for sequence in sequences], num_blocks


def test_rows_that_join_and_leave_share_a_recording(request: pytest.FixtureRequest) -> None:
    decoder, lengths = make_decoder(context_length=160), [40, 37, 34, 31, 28, 25, 22, 19]
    expected, _ = coming_and_going(decoder, lengths, 5)
    recordings = request.getfixturevalue("recordings")
    assert coming_and_going(decoder, lengths, 5)[0] == expected
    assert recordings == [(8, 2), (4, 2), (2, 2), (1, 2)]


def test_what_padding_rows_write_is_read_by_no_other(request: pytest.FixtureRequest) -> None:
    decoder, lengths = make_decoder(context_length=160), [60, 20, 20]  # with tables of two blocks and of one
    expected, _ = coming_and_going(decoder, lengths, 3)
    assert coming_and_going(decoder, lengths, 3, spoil=True)[0] == expected
    recordings = request.getfixturevalue("recordings")
    assert coming_and_going(decoder, lengths, 3, spoil=True)[0] == expected
    assert recordings == [(4, 2), (1, 2)]


def test_for_tables_that_grow_no_step_is_recorded_again(request: pytest.FixtureRequest) -> None:
    decoder, lengths = make_decoder(context_length=160, position="rotary"), [110, 110]
    expected, _ = coming_and_going(decoder, lengths, 2, num_blocks=8)
    recordings = request.getfixturevalue("recordings")
    tokens, num_blocks = coming_and_going(decoder, lengths, 2, num_blocks=7)
    assert tokens == expected
    assert {1, 2, 3, 4} <= set(num_blocks)
    assert len(recordings) == len(set(recordings)) and (2, 4) in recordings


def test_blocks_and_positions_are_copied_only_for_other_rows(
    recordings: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[list[Any]] = []

    def to_device(tensor: Tensor, device: Any) -> Tensor:
        copied.append(tensor.tolist())
        return tensor.clone()

    monkeypatch.setattr(recorded_step, "to_device", to_device)
    decoder = make_decoder(context_length=160)
    recorder, ids = StepRecorder(decoder, PagedKVCache(decoder.config, 9, torch.float64, "cpu"), None), torch.ones(3, 1)
    tables = [[1, 2, 3], [4, 5], [6]]
    for start in (20, 21):
        step = recorder.step_for([PagedRow(table, start, 1) for table in tables], [None] * 3)
        assert step is not None
        step(ids.long())
    assert copied == [[[1, 2, 3, 1], [4, 5, 4, 4], [6, 6, 6, 6], [0] * 4], [20, 20, 20, 0], [[1]] * 3, [[1]] * 3]
    assert step.positions.tolist() == [[22], [22], [22], [0]]
    tables[0].append(7)
    assert recorder.step_for([PagedRow(table, 22, 1) for table in tables], [None] * 3) is step
    assert copied[4:] == [[[1, 2, 3, 7], [4, 5, 4, 4], [6, 6, 6, 6], [0] * 4], [22, 22, 22, 0]]
    assert len(recordings) == 1


def test_steps_that_were_not_used_for_long_are_dropped_and_all_with_their_form(
    recordings: list[tuple[int, int]],
) -> None:
    engine = Engine(make_decoder(), 3)
    form = engine.watched_copy()

    def use(rows: int) -> weakref.ref[RecordedStep]:
        step = engine._recorder(form).step_for([PagedRow([1], 3, 1)] * rows, [None] * rows)
        assert step is not None
        return weakref.ref(step)

    steps = [use(rows) for rows in (1, 2, 4, *range(8, 8 * (STEPS_KEPT - 2), 8))]
    assert len(recordings) == len(steps) == STEPS_KEPT
    assert use(1) is steps[0]
    steps.append(use(200))
    assert [index for index, step in enumerate(steps) if step() is None] == [1]
    engine.forget(form)
    assert all(step() is None for step in steps)


def test_rows_whose_logits_are_not_wanted_do_not_shift_the_others(request: pytest.FixtureRequest) -> None:
    decoder, sampler = make_decoder(), Sampler(SamplingConfig(temperature=1.5, seed=4))

    def tokens() -> list[list[int]]:
        unsampled = Sequence([7, 8], rules=Rules(sampler, 0))  # its first token is read, and no logits are used
        sequences = [unsampled, *(Sequence([prompt], prompt, rules=Rules(sampler, 4)) for prompt in range(4))]
        list(run(Scheduler(decoder), sequences))
        return [sequence.generated for sequence in sequences]

    expected = tokens()
    request.getfixturevalue("recordings")
    assert tokens() == expected


@pytest.fixture
def translating() -> EncoderDecoder:
    """A decoder of five sources, with strong random weights."""
    sizes = {"num_layers": 2, "num_heads": 2, "width": 8, "context_length": 24, "vocab_size": 13}
    model = EncoderDecoder(make_section(EncoderDecoderConfig, {**VASWANI, **sizes})).double()
    with_large_weights(model, 0.4).requires_grad_(False)
    return model.given(make_source([[3, 4, 5], [6, 7], [8], [9, 3, 4, 5], [10, 3]]))


def test_padding_rows_read_a_source_that_is_there(translating: EncoderDecoder, request: pytest.FixtureRequest) -> None:
    def tokens() -> list[list[int]]:
        sequences = [Sequence([1], row, row=row) for row in range(5)]
        sampler = Sampler(SamplingConfig(temperature=1.5, seed=4))
        for sequence in sequences:
            sequence.rules = Rules(sampler, 4 + 3 * sequence.sample)
        list(run(make_scheduler(translating, sequences), sequences))
        return [sequence.generated for sequence in sequences]

    expected = tokens()
    recordings = request.getfixturevalue("recordings")
    assert tokens() == expected
    assert recordings == [(8, 1), (4, 1), (4, 1), (2, 1), (1, 1)]  # one for each set of sources


def test_a_step_keeps_the_memory_that_it_reads(translating: EncoderDecoder, recordings: list[tuple[int, int]]) -> None:
    recorder = StepRecorder(translating, PagedKVCache(translating.config, 9, torch.float64, "cpu"), None)
    step = recorder.step_for([PagedRow([1], 0, 1)], [3])
    assert translating.memory is not None and translating.memory.origins == [3]
    read = weakref.ref(translating.memory)
    translating.memory = None
    assert step is not None and read() is not None

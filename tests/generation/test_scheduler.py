"""Sequences that join and leave are continued as each would be alone, and give back what they took."""

from __future__ import annotations

import copy
import os
import random
from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.errors import ContextLengthError, UsageError
from foretell.generation import scheduler as scheduler_module
from foretell.generation.admission import ReadingPace
from foretell.generation.batch_generation import generate, make_scheduler, run
from foretell.generation.block_table import BlockPool, BlockTable
from foretell.generation.engine import Engine
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules, Sequence, table_of
from foretell.generation.speculation import PromptLookup
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.kernels.strict import strict_copy
from foretell.model.surgery import copy_with

CONTEXT, VOCABULARY = 96, 23
SEEDS = 6
STEPS = int(os.environ.get("FORETELL_FUZZ_STEPS", "360")) // SEEDS  # make fuzz: 100,000
SAMPLERS = [Sampler(SamplingConfig(temperature=0)), Sampler(SamplingConfig(temperature=1.5, top_p=1.0, seed=4))]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """Strong random weights, so that the next token depends on everything before it."""
    sizes = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": CONTEXT, "vocab_size": VOCABULARY}
    decoder = make_decoder(make_section(ModelConfig, sizes), seed=1).double().eval().requires_grad_(False)
    for parameter in decoder.parameters():
        parameter.mul_(6)
    return decoder


def make_sequence(prompt: list[int], sample: int = 0, **rules: Any) -> Sequence:
    values: dict[str, Any] = {"sampler": SAMPLERS[1], "max_tokens": 12, **rules}
    return Sequence(prompt, sample, rules=Rules(**values))


def alone(decoder: Decoder, sequence: Sequence) -> list[int]:
    """The continuation of a copy of a sequence, by itself."""
    copy = Sequence(sequence.prompt, sequence.sample, rules=sequence.rules)
    list(run(make_scheduler(decoder, [copy]), [copy]))
    return copy.generated


def finish(scheduler: Scheduler, *sequences: Sequence) -> None:
    """Add the sequences, and step until all have ended."""
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.is_busy:
        scheduler.step()


def assert_nothing_is_leaked(scheduler: Scheduler) -> None:
    assert not any(scheduler.pool.owners)
    assert scheduler.pool.num_free == scheduler.num_blocks


def random_prompt(rng: random.Random) -> list[int]:
    """Some prompts begin alike, for one block or more."""
    common = [(7 * place) % VOCABULARY for place in range(rng.choice([0, 0, 5, 40, 70]))]
    return [*common, *(rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 24)))]


def random_sequence(rng: random.Random) -> Sequence:
    prompt = random_prompt(rng)
    shift = rng.random() < 0.2
    longest = 40 if shift else CONTEXT + 1 - len(prompt)
    return make_sequence(
        prompt,
        rng.randrange(3),
        sampler=rng.choice(SAMPLERS),
        max_tokens=rng.choice([None, 1, min(5, longest), min(20, longest)]) if not shift else rng.randrange(1, 40),
        end_ids=frozenset(rng.sample(range(VOCABULARY), rng.choice([0, 1]))),
        slide=shift,
    )


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, SEEDS))])
def test_random_adds_and_cancels_change_no_continuation_and_leak_no_block(
    seed: int, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(ReadingPace, "room", lambda pace, num_growing, _: 16 if num_growing else 4096)
    paused = count_pauses(monkeypatch)
    scheduler = Scheduler(decoder, num_blocks=9, max_rows=5)
    added: list[Sequence] = []
    for _ in range(STEPS):
        for _ in range(rng.choice([0, 0, 1, 2]) if len(scheduler.waiting) < 10 else 0):
            added.append(random_sequence(rng))
            added[-1].key = rng.choice("aab")
            scheduler.add(added[-1])
        if added and rng.random() < 0.1:
            scheduler.cancel(rng.choice(added[-15:]))
        scheduler.step()
        owned = sum(len(sequence.table.blocks) for sequence in scheduler.running if sequence.table)
        assert sum(scheduler.pool.owners) == owned
    finish(scheduler)
    assert_nothing_is_leaked(scheduler)
    assert {sequence.finish_reason for sequence in added} >= {"length", "cancelled"}
    assert paused
    for sequence in added:
        expected = alone(decoder, sequence)
        assert sequence.generated == (
            expected[: len(sequence.generated)] if sequence.finish_reason == "cancelled" else expected
        )


def test_a_block_that_is_shared_by_mistake_changes_a_continuation(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[1] * 40, [2] * 40]
    expected = [alone(decoder, make_sequence(prompt)) for prompt in prompts]
    matched = BlockPool.matched
    monkeypatch.setattr(BlockPool, "matched", lambda pool, root, tokens: matched(pool, root, [1] * 40))
    scheduler = Scheduler(decoder, num_blocks=8, max_rows=1)
    sequences = [make_sequence(prompt) for prompt in prompts]
    finish(scheduler, *sequences)
    assert sequences[0].generated == expected[0]
    assert sequences[1].generated != expected[1]


def count_tokens_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []
    read = Engine.read

    def counting(engine: Engine, sequences: list[Sequence], tokens: list[list[int]], num_logits: list[int]):
        counts.append(sum(map(len, tokens)))
        return read(engine, sequences, tokens, num_logits)

    monkeypatch.setattr(Engine, "read", counting)
    return counts


def test_the_samples_of_one_prompt_read_it_once(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_tokens_read(monkeypatch)
    sequences = [Sequence([5] * 50 + [6], sample) for sample in range(10)]
    list(generate(decoder, sequences, SAMPLERS[1], 1))
    assert sum(counts) == 51 + 9  # of each copy the last token, for its logits
    assert len({sequence.generated[0] for sequence in sequences}) > 1


def test_users_share_no_cached_beginning(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time until the first token would show what others have asked."""
    counts, scheduler = count_tokens_read(monkeypatch), Scheduler(decoder)
    read = []
    for key, salt in (("a", ""), ("a", ""), ("b", ""), ("a", "salt")):
        sequence = make_sequence([5] * 50 + [6], max_tokens=1)
        sequence.key, sequence.cache_salt = key, salt
        finish(scheduler, sequence)
        read.append(sum(counts))
        counts.clear()
    assert read == [51, 1, 51, 51]


def test_the_samples_of_a_prompt_that_was_read_start_in_one_step(decoder: Decoder) -> None:
    """40 tokens are two full blocks and a part of one, which every sample copies."""
    scheduler = Scheduler(decoder)
    for sample in range(8):
        scheduler.add(make_sequence([5] * 40, sample, max_tokens=3))
    scheduler.step()
    assert len(scheduler.running) == 1
    scheduler.step()
    assert len(scheduler.running) == 8
    finish(scheduler)
    assert_nothing_is_leaked(scheduler)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_long_prompt_is_read_in_parts_between_the_steps_of_others(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    decoder = copy.deepcopy(decoder).to(dtype)
    monkeypatch.setattr(ReadingPace, "room", lambda pace, num_growing, _: 10 if num_growing else 4096)
    scheduler = Scheduler(decoder)
    early, late = make_sequence([1, 2], max_tokens=30), make_sequence([3] * 50)
    scheduler.add(early)
    scheduler.step()
    scheduler.add(late)
    for step in range(1, 6):
        scheduler.step()
        assert (len(early.generated), late.num_cached) == (1 + step, 10 * step)
    assert len(late.generated) == 1


@pytest.mark.parametrize(("step_seconds", "cached"), [(1.0, [20, 30, 0]), (None, [20, 0, 0])])
def test_a_prompt_is_cut_to_fill_a_pass_only_where_the_time_decides(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, step_seconds: float | None, cached: list[int]
) -> None:
    monkeypatch.setattr(ReadingPace, "room", lambda pace, *_: 60)
    scheduler = Scheduler(decoder, step_seconds=step_seconds)
    sequences = [make_sequence([first] * length) for first, length in ((1, 20), (2, 50), (3, 50))]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.step()
    assert [sequence.num_cached for sequence in sequences] == cached
    finish(scheduler)
    assert [sequence.generated for sequence in sequences] == [alone(decoder, sequence) for sequence in sequences]


def count_pauses(monkeypatch: pytest.MonkeyPatch) -> list[Sequence]:
    paused: list[Sequence] = []
    pause = Scheduler._pause
    monkeypatch.setattr(
        Scheduler, "_pause", lambda scheduler, sequence: paused.append(sequence) or pause(scheduler, sequence)
    )
    return paused


@pytest.mark.parametrize("proposer", [None, PromptLookup(4)], ids=["plain", "guesses"])
def test_the_sequence_that_started_last_waits_when_the_blocks_run_out(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, proposer: PromptLookup | None
) -> None:
    paused = count_pauses(monkeypatch)
    scheduler = Scheduler(decoder, num_blocks=3, proposer=proposer)
    first, second = make_sequence([1], max_tokens=60), make_sequence([2], max_tokens=50)
    for sequence in (first, second):
        scheduler.add(sequence)
    scheduler.step()
    assert first.generated
    assert second.generated  # although the blocks do not suffice for both
    finish(scheduler)
    assert set(paused) == {second}
    assert [first.generated, second.generated] == [alone(decoder, first), alone(decoder, second)]
    assert_nothing_is_leaked(scheduler)


def test_pauses_change_no_bit_in_strict_mode(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = strict_copy(copy.deepcopy(decoder).float())
    paused = count_pauses(monkeypatch)

    def logprobs(num_blocks: int | None, room: int) -> list[Any]:
        monkeypatch.setattr(ReadingPace, "room", lambda pace, num_growing, num_reading: room)
        scheduler = Scheduler(strict, num_blocks=num_blocks)
        sequences = [make_sequence([sample + 1] * 20, sample, max_tokens=60, top_logprobs=2) for sample in range(4)]
        found: dict[Sequence, list[Any]] = {sequence: [] for sequence in sequences}
        for sequence, *event in run(scheduler, sequences):
            found[sequence].append(event)
        return list(found.values())

    expected = logprobs(None, 4096)
    assert not paused
    for room in (7, 4096):
        assert logprobs(4, room) == expected
        assert len(paused) > 2
        paused.clear()


def test_blocks_that_are_reserved_for_later_go_to_a_sequence_that_waits(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, num_blocks=4)
    first, second = make_sequence([1], max_tokens=90), make_sequence([2], max_tokens=90)
    scheduler.add(first)
    scheduler.step()
    assert len(table_of(first).blocks) == 3
    scheduler.add(second)
    scheduler.step()
    assert [len(table_of(first).blocks), len(table_of(second).blocks)] == [1, 1]
    finish(scheduler)
    assert [first.generated, second.generated] == [alone(decoder, first), alone(decoder, second)]


def test_a_large_sequence_does_not_block_small_ones_for_ever_nor_they_it(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "MOST_PASSED", 3)
    scheduler = Scheduler(decoder, num_blocks=4)
    first, large = make_sequence([1] * 40, max_tokens=20), make_sequence([2] * 90, max_tokens=3)
    small = [make_sequence([3 + index], max_tokens=25) for index in range(9)]
    for sequence in (first, large, *small):
        scheduler.add(sequence)
    scheduler.step()
    assert small[0].generated  # it has passed the large one
    ended: list[Sequence] = []
    while scheduler.is_busy:
        scheduler.step()
        ended += scheduler.ended
    assert ended.index(large) < ended.index(small[4])
    assert_nothing_is_leaked(scheduler)


def test_a_user_with_one_sequence_does_not_wait_for_a_user_with_many(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, max_rows=4)
    many = [make_sequence([1 + index], max_tokens=60) for index in range(12)]
    for sequence in many:
        sequence.key = "many"
        scheduler.add(sequence)
    scheduler.step()
    one = make_sequence([20], max_tokens=3)
    one.key = "one"
    scheduler.add(one)
    scheduler.step()
    assert len(one.generated) == 1  # the last of the others has made way
    assert [bool(sequence.table) for sequence in many[:4]] == [True, True, True, False]
    finish(scheduler)
    for sequence in (one, *many):
        assert sequence.generated == alone(decoder, sequence)


def test_each_sequence_has_its_own_rules(decoder: Decoder) -> None:
    sequences = [
        make_sequence([1, 2, 3], max_tokens=3),
        make_sequence([4], sampler=SAMPLERS[0], max_tokens=8),
        make_sequence([5], max_tokens=None),
    ]
    expected = [alone(decoder, sequence) for sequence in sequences]
    stopped = make_sequence([1, 2, 3], max_tokens=20)
    stopped.stop = lambda token: len(stopped.generated) == 2
    list(run(Scheduler(decoder), [*sequences, stopped]))
    assert [sequence.generated for sequence in sequences] == expected
    assert [sequence.finish_reason for sequence in (*sequences, stopped)] == ["length", "length", "context", "stop"]
    assert stopped.generated == expected[0][:2]


def test_another_form_of_the_model_serves_only_its_own_sequence(decoder: Decoder) -> None:
    changed = copy_with(decoder, {"trunk.blocks.0.feedforward": torch.nn.Identity()})
    prompt = [3] * 40
    expected = alone(decoder, make_sequence(prompt))
    sequences = [make_sequence(prompt), make_sequence(prompt)]
    sequences[1].decoder = changed
    list(run(make_scheduler(decoder, sequences), sequences))
    assert sequences[0].generated == expected
    assert sequences[1].generated == alone(changed, make_sequence(prompt)) != expected


@torch.inference_mode()
def test_hooks_on_another_form_see_only_the_passes_of_its_own_sequence(decoder: Decoder) -> None:
    watched = copy_with(decoder, {"trunk": copy_with(decoder.trunk, {})})
    watched.trunk._forward_hooks = type(watched.trunk._forward_hooks)()
    seen: list[int] = []
    watched.trunk.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    sequences = [make_sequence([1, 2, 3], sample, max_tokens=4) for sample in range(3)]
    sequences[2].decoder = watched
    list(run(make_scheduler(decoder, sequences), sequences))
    assert seen == [1] * 4


def poisoned(decoder: Decoder) -> Decoder:
    """A copy whose stream is not finite at the token 7."""

    def poison(module: Any, inputs: Any, stream: torch.Tensor) -> torch.Tensor:
        return stream.masked_fill((inputs[0] == 7)[..., None], torch.nan)

    other = copy.deepcopy(decoder)
    other.get_submodule("embed").register_forward_hook(poison)
    return other


@pytest.mark.parametrize("max_tokens", [0, 4])  # without logits, with logits that are not finite
def test_numbers_that_are_not_finite_stay_with_their_sequence(decoder: Decoder, max_tokens: int) -> None:
    """Keys and values of the poisoned sequences remain in blocks that others get, and in the padding of their pass."""
    scheduler = Scheduler(poisoned(decoder), num_blocks=9)
    lengths = ((1, 40), (2, 1), (3, 0), (1, 41))
    others = [make_sequence([*range(start, 7), *[3] * length]) for start, length in lengths * 2]
    wrong = [make_sequence([7] * length, max_tokens=max_tokens) for length in (3, 34, 36)]
    finish(scheduler, *wrong, *others[:4])
    for sequence in others[4:]:
        sequence.cache_salt = "none of the blocks that are kept"
    finish(scheduler, *others[4:])
    assert [sequence.generated for sequence in wrong] == [[], [], []]
    for sequence in others:  # one that samples a 7 ends there
        assert sequence.generated and sequence.generated == alone(decoder, sequence)[: len(sequence.generated)]
        assert len(sequence.generated) == 12 or sequence.generated[-1] == 7


def test_a_cancelled_sequence_frees_its_blocks_at_once(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, num_blocks=3)
    running, waiting = make_sequence([1], max_tokens=60), make_sequence([2] * 90, max_tokens=6)
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.step()
    scheduler.cancel(running)
    assert_nothing_is_leaked(scheduler)
    scheduler.step()
    assert (running.finish_reason, len(waiting.generated)) == ("cancelled", 1)
    scheduler.cancel(waiting)
    assert not scheduler.is_busy


def test_a_leak_would_be_noticed(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockPool, "give_back", lambda pool, table: None)
    scheduler = Scheduler(decoder, num_blocks=3)
    finish(scheduler, make_sequence([1]))
    with pytest.raises(AssertionError):
        assert_nothing_is_leaked(scheduler)


def test_a_context_shift_waits_while_others_use_the_blocks_that_were_shared(decoder: Decoder) -> None:
    prompt = [(7 * place) % VOCABULARY for place in range(70)]
    scheduler = Scheduler(decoder, num_blocks=4)
    shifting = make_sequence(prompt, max_tokens=60, slide=True)
    other = make_sequence(prompt, 1, max_tokens=27)
    finish(scheduler, shifting, other)
    assert shifting.generated == alone(decoder, shifting)
    assert other.generated == alone(decoder, other)
    assert_nothing_is_leaked(scheduler)


def test_a_context_shift_gives_back_what_it_takes(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, num_blocks=3)
    sequence = make_sequence([1, 2], max_tokens=200, slide=True)
    finish(scheduler, sequence)
    assert sequence.generated == alone(decoder, sequence)
    assert_nothing_is_leaked(scheduler)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_text_that_needs_more_than_the_whole_cache_is_refused(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, num_blocks=1)
    with pytest.raises(UsageError, match=r"a text of 64 tokens needs .* MiB of cache, but there are .*; ask for fewer"):
        scheduler.add(make_sequence([1] * 30))
    assert not scheduler.is_busy


def test_a_sequence_is_added_once(decoder: Decoder) -> None:
    scheduler, sequence = Scheduler(decoder, num_blocks=3), make_sequence([1, 2])
    scheduler.add(sequence)
    with pytest.raises(UsageError, match="was added before"):
        scheduler.add(sequence)
    finish(scheduler)
    with pytest.raises(UsageError, match="was added before"):
        scheduler.add(sequence)


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_an_id_that_the_model_does_not_have_is_refused(decoder: Decoder, token: int) -> None:
    with pytest.raises(UsageError, match=f"the prompt has the id {token}, but the model's ids are 0 to 22"):
        Scheduler(decoder, num_blocks=3).add(make_sequence([1, token]))


def test_a_sequence_that_is_cancelled_at_its_token_stays_so(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder)
    sequence = make_sequence([1, 2, 3])
    sequence.stop = lambda token: scheduler.cancel(sequence) is not None
    finish(scheduler, sequence)
    assert (sequence.finish_reason, len(sequence.generated)) == ("cancelled", 1)
    assert_nothing_is_leaked(scheduler)


def test_a_scheduler_cancels_only_its_own_sequences(decoder: Decoder) -> None:
    sequence = make_sequence([1, 2])
    Scheduler(decoder, num_blocks=3).cancel(sequence)
    assert sequence.finish_reason is None


def test_schedulers_that_share_a_cache_share_no_rows_and_one_holds_at_most_half_of_it(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, max_rows=2, num_blocks=4)  # of 16 tokens
    reader = scheduler.sharing_cache(step_seconds=0.02)
    reads = [make_sequence([token] * 16, max_tokens=0) for token in range(5)]
    large, text = make_sequence([9] * 60, max_tokens=1), make_sequence([9, 8])
    for sequence in (*reads, large):
        reader.add(sequence)
    reader._admit()
    assert len(reader.running) == 2
    scheduler.add(text)
    for count in range(1, 13):
        scheduler.step()
        assert len(text.generated) == count
    assert all(sequence.num_cached == 0 for sequence in reads)
    finish(reader)
    assert text.generated == alone(decoder, text)
    assert large.generated == alone(decoder, large)
    assert_nothing_is_leaked(scheduler)


def test_a_cache_larger_than_the_memory_is_refused(decoder: Decoder) -> None:
    with pytest.raises(UsageError, match=r"a cache of 1,048,576.0 GiB does not fit the [\d.]+ GiB here"):
        Scheduler(decoder, memory=2**50)


def test_a_sequence_that_does_not_fit_the_context_is_refused(decoder: Decoder) -> None:
    with pytest.raises(ContextLengthError, match="the prompt has 97 tokens"):
        Scheduler(decoder).add(make_sequence([1] * 97))


def test_the_cache_takes_the_memory_that_it_is_given(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, memory=2**20)
    cache = scheduler.engine.cache
    assert 2**19 < cache.keys.nbytes + cache.values.nbytes <= 2**20 + 2 * cache.keys[:, :, 0].nbytes


def test_schedulers_share_one_memory(decoder: Decoder) -> None:
    alone, shared = Scheduler(decoder, memory=2**20), Scheduler(decoder, memory=2**20, num_schedulers=3)
    assert shared.num_blocks == alone.num_blocks // 3


def test_a_table_starts_without_blocks() -> None:
    assert BlockTable(3).last_content == 3


def test_adding_and_cancelling_do_not_scan_the_queue(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 prompts took hours. A scan compares sequences."""
    many = [make_sequence([index % VOCABULARY], max_tokens=1) for index in range(200)]
    scheduler, compared = make_scheduler(decoder, many), []
    monkeypatch.setattr(Sequence, "__eq__", lambda one, two: compared.append(two) or one is two)
    for sequence in many:
        scheduler.add(sequence)
    for sequence in reversed(many):
        scheduler.cancel(sequence)
    assert compared == []
    assert not scheduler.is_busy
    assert {sequence.finish_reason for sequence in many} == {"cancelled"}


# --- nothing outlives its request ------------------------------------------------------------------------------------


def test_a_watched_sequence_runs_in_its_own_pass_and_leaves_nothing(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder)
    expected = alone(decoder, make_sequence([1, 2, 3]))
    list(run(scheduler, [make_sequence([9])]))
    kept = list(scheduler.engine._prepared), list(scheduler._roots)
    seen: list[int] = []
    sequences = [make_sequence([1, 2, 3], sample) for sample in (0, 0, 1)]
    sequences[0].decoder = watched = scheduler.engine.watched_copy()
    watched.trunk.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    list(run(scheduler, sequences))
    assert seen == [1] * 12
    assert sequences[0].generated == sequences[1].generated == expected
    cancelled = make_sequence([4])
    cancelled.decoder = scheduler.engine.watched_copy()
    scheduler.add(cancelled)
    scheduler.cancel(cancelled)
    assert (list(scheduler.engine._prepared), list(scheduler._roots)) == kept
    assert not scheduler._forms


def test_the_cache_remembers_a_limited_number_of_users(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "ROOTS_KEPT", 3)
    scheduler = Scheduler(decoder)
    for user in range(9):
        sequence = make_sequence([1, 2], max_tokens=2)
        sequence.key = str(user)
        finish(scheduler, sequence)
    assert [key for *_, key, _ in scheduler._roots] == ["6", "7", "8"]
    assert_nothing_is_leaked(scheduler)

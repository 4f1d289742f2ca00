"""Sequences that join and leave are continued as each would be alone, and give back what they took."""

from __future__ import annotations

import copy
import os
import random
from typing import Any

import pytest
import torch

from foretell.config import ModelConfig, SamplingConfig, make_section
from foretell.errors import ContextLengthError, UsageError
from foretell.generation import scheduler as scheduler_module
from foretell.generation.engine import Engine
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler, generate, make_scheduler, run
from foretell.generation.sequence import BlockPool, BlockTable, Rules, Sequence
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
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
    for _ in run(make_scheduler(decoder, [copy]), [copy]):
        pass
    return copy.generated


def finish(scheduler: Scheduler) -> None:
    while scheduler.is_busy:
        scheduler.step()


def assert_nothing_is_leaked(scheduler: Scheduler) -> None:
    assert not any(scheduler.pool.owners)
    assert len(scheduler.pool.free) == scheduler.num_blocks


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


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_adds_and_cancels_change_no_continuation_and_leak_no_block(
    seed: int, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(scheduler_module, "TOKENS_BETWEEN_STEPS", 16)
    scheduler = Scheduler(decoder, num_blocks=14, max_rows=5)
    added: list[Sequence] = []
    for _ in range(STEPS):
        for _ in range(rng.choice([0, 0, 1, 2]) if len(scheduler.waiting) < 10 else 0):
            added.append(random_sequence(rng))
            scheduler.add(added[-1])
        if added and rng.random() < 0.1:
            scheduler.cancel(rng.choice(added[-15:]))
        scheduler.step()
        owned = sum(len(sequence.table.blocks) for sequence in scheduler.running if sequence.table)
        assert sum(scheduler.pool.owners) == owned
    finish(scheduler)
    assert_nothing_is_leaked(scheduler)
    assert {sequence.finish_reason for sequence in added} >= {"length", "cancelled"}
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
    for sequence in sequences:
        scheduler.add(sequence)
    finish(scheduler)
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
    for _ in generate(decoder, sequences, SAMPLERS[1], 1):
        pass
    assert sum(counts) == 51 + 9  # of each copy the last token, for its logits
    assert len({sequence.generated[0] for sequence in sequences}) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_long_prompt_is_read_in_parts_between_the_steps_of_others(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    decoder = copy.deepcopy(decoder).to(dtype)
    monkeypatch.setattr(scheduler_module, "TOKENS_BETWEEN_STEPS", 10)
    scheduler = Scheduler(decoder)
    early, late = make_sequence([1, 2], max_tokens=30), make_sequence([3] * 50)
    scheduler.add(early)
    scheduler.step()
    scheduler.add(late)
    for step in range(1, 6):
        scheduler.step()
        assert (len(early.generated), late.num_cached) == (1 + step, 10 * step)
    assert len(late.generated) == 1


def test_a_sequence_waits_until_there_is_room_for_its_longest_text(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, num_blocks=3)
    first, second = make_sequence([1], max_tokens=50), make_sequence([2], max_tokens=40)
    scheduler.add(first)
    scheduler.add(second)
    for _ in range(50):
        assert not second.generated
        scheduler.step()
    assert first.finish_reason == "length"
    finish(scheduler)
    assert second.generated == alone(decoder, second)


def test_each_sequence_has_its_own_rules(decoder: Decoder) -> None:
    sequences = [
        make_sequence([1, 2, 3], max_tokens=3),
        make_sequence([4], sampler=SAMPLERS[0], max_tokens=8),
        make_sequence([5], max_tokens=None),
    ]
    expected = [alone(decoder, sequence) for sequence in sequences]
    stopped = make_sequence([1, 2, 3], max_tokens=20)
    stopped.stop = lambda token: len(stopped.generated) == 2
    for _ in run(Scheduler(decoder), [*sequences, stopped]):
        pass
    assert [sequence.generated for sequence in sequences] == expected
    assert [sequence.finish_reason for sequence in (*sequences, stopped)] == ["length", "length", "context", "stop"]
    assert stopped.generated == expected[0][:2]


def test_another_form_of_the_model_serves_only_its_own_sequence(decoder: Decoder) -> None:
    changed = copy_with(decoder, {"trunk.blocks.0.feedforward": torch.nn.Identity()})
    prompt = [3] * 40
    expected = alone(decoder, make_sequence(prompt))
    sequences = [make_sequence(prompt), make_sequence(prompt)]
    sequences[1].decoder = changed
    for _ in run(make_scheduler(decoder, sequences), sequences):
        pass
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
    for _ in run(make_scheduler(decoder, sequences), sequences):
        pass
    assert seen == [1] * 4


def test_a_cancelled_sequence_frees_its_blocks_at_once(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, num_blocks=3)
    running, waiting = make_sequence([1], max_tokens=60), make_sequence([2], max_tokens=60)
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
    scheduler.add(make_sequence([1]))
    finish(scheduler)
    with pytest.raises(AssertionError):
        assert_nothing_is_leaked(scheduler)


def test_a_context_shift_waits_while_others_use_the_blocks_that_were_shared(decoder: Decoder) -> None:
    prompt = [(7 * place) % VOCABULARY for place in range(70)]
    scheduler = Scheduler(decoder, num_blocks=4)
    shifting = make_sequence(prompt, max_tokens=60, slide=True)
    other = make_sequence(prompt, 1, max_tokens=27)
    for sequence in (shifting, other):
        scheduler.add(sequence)
    finish(scheduler)
    assert shifting.generated == alone(decoder, shifting)
    assert other.generated == alone(decoder, other)
    assert_nothing_is_leaked(scheduler)


def test_a_context_shift_gives_back_what_it_takes(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, num_blocks=3)
    sequence = make_sequence([1, 2], max_tokens=200, slide=True)
    scheduler.add(sequence)
    finish(scheduler)
    assert sequence.generated == alone(decoder, sequence)
    assert_nothing_is_leaked(scheduler)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_text_that_needs_more_than_the_whole_cache_is_refused(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, num_blocks=1)
    with pytest.raises(UsageError, match=r"a text of 64 tokens needs .* MiB of cache, and there are .*; ask for fewer"):
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
    with pytest.raises(UsageError, match=f"the prompt has the id {token}; the model's ids are 0 to 22"):
        Scheduler(decoder, num_blocks=3).add(make_sequence([1, token]))


def test_a_sequence_that_is_cancelled_at_its_token_stays_so(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder)
    sequence = make_sequence([1, 2, 3])
    sequence.stop = lambda token: scheduler.cancel(sequence) is not None
    scheduler.add(sequence)
    finish(scheduler)
    assert (sequence.finish_reason, len(sequence.generated)) == ("cancelled", 1)
    assert_nothing_is_leaked(scheduler)


def test_a_scheduler_cancels_only_its_own_sequences(decoder: Decoder) -> None:
    sequence = make_sequence([1, 2])
    Scheduler(decoder, num_blocks=3).cancel(sequence)
    assert sequence.finish_reason is None


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

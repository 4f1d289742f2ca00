"""A failure in one sequence ends that sequence and changes no bit of the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from foretell.config.sampling import SamplingConfig
from foretell.errors import CheckpointError, Interrupted, UsageError
from foretell.generation.batch_generation import run
from foretell.generation.filters import Prefixes
from foretell.generation.next_tokens import ChosenToken, LogitsRow, choose, separately
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules, Sequence
from foretell.generation.speculation import PromptLookup
from foretell.model.decoder import Decoder
from foretell.model.surgery import copy_with
from tests.generation.test_scheduler import SAMPLERS, assert_nothing_is_leaked, decoder, finish, make_sequence

__all__ = ["decoder"]  # the fixture


class FailingSampler(Sampler):
    """Raises for one sample after some tokens."""

    def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
        if any(sample == 1 and len(prefix.generated) == 3 for sample, prefix in zip(samples, prefixes, strict=True)):
            raise UsageError("no token is left")
        return super().__call__(logits, prefixes, samples)


def fail_at_the_third(sequence: Sequence) -> None:
    def stop(token: int) -> bool:
        if len(sequence.generated) == 3:
            raise RuntimeError("a stop rule")
        return False

    sequence.stop = stop


def tokens_of(events: list[list[Any]]) -> list[list[int]]:
    return [[event[0] for event in row] for row in events]


def together(decoder: Decoder, *others: Sequence, proposer: Any = None, **rules: Any) -> list[list[Any]]:
    """The events of three sequences, with others in the same scheduler."""
    sequences = [make_sequence([1, 2, 3], sample, top_logprobs=2, **rules) for sample in (0, 2, 3)]
    scheduler, events = Scheduler(decoder, proposer=proposer), []
    for sequence in (sequences[0], *others, *sequences[1:]):
        scheduler.add(sequence)
    while scheduler.is_busy:
        events += scheduler.step()
    assert_nothing_is_leaked(scheduler)
    return [[event[1:] for event in events if event.sequence is sequence] for sequence in sequences]


def test_a_sampler_that_raises_ends_only_its_own_sequence(decoder: Decoder) -> None:
    sampler = FailingSampler(SamplingConfig(temperature=1.5, seed=4))
    failing = make_sequence([1, 2, 3], 1, sampler=sampler)
    found = together(decoder, failing, sampler=sampler)
    assert (failing.finish_reason, len(failing.generated), str(failing.error)) == ("error", 3, "no token is left")
    healthy = make_sequence([1, 2, 3], 1, sampler=Sampler(sampler.config), max_tokens=4)  # in the same passes
    assert found == together(decoder, healthy, sampler=sampler)  # the same bits


def test_a_sampler_that_raises_after_a_guess_ends_only_its_own_sequence(decoder: Decoder) -> None:
    sampler = FailingSampler(SamplingConfig(temperature=1.5, seed=4))
    failing = make_sequence([1, 2, 3], 1, sampler=sampler)
    found = together(decoder, failing, proposer=PromptLookup(3), sampler=sampler)
    assert (failing.finish_reason, len(failing.generated), str(failing.error)) == ("error", 3, "no token is left")
    assert tokens_of(found) == tokens_of(together(decoder, proposer=PromptLookup(3), sampler=sampler))


def test_a_stop_rule_that_raises_ends_only_its_own_sequence(decoder: Decoder) -> None:
    failing, healthy = make_sequence([1, 2, 3], 1), make_sequence([1, 2, 3], 1, max_tokens=3)
    fail_at_the_third(failing)
    assert together(decoder, failing) == together(decoder, healthy)
    assert (failing.finish_reason, failing.generated) == ("error", healthy.generated[:3])
    assert isinstance(failing.error, RuntimeError)


def test_logits_that_are_not_finite_end_only_the_sequences_of_their_form_of_the_model(decoder: Decoder) -> None:
    head = torch.nn.Linear(16, 23).double().requires_grad_(False)
    head.weight.fill_(torch.nan)
    broken = copy_with(decoder, {"head": head})
    failing = make_sequence([1, 2, 3], 1)
    failing.decoder = broken
    assert together(decoder, failing) == together(decoder)
    assert (failing.finish_reason, failing.generated) == ("error", [])
    assert isinstance(failing.error, CheckpointError)


def test_a_pass_that_raises_ends_the_sequences_of_its_form_of_the_model(decoder: Decoder) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("a hook")

    watched = copy_with(decoder, {"trunk": copy_with(decoder.trunk, {})})
    watched.trunk._forward_hooks = type(watched.trunk._forward_hooks)()
    watched.trunk.register_forward_hook(refuse)
    failing = make_sequence([1, 2, 3], 1)
    failing.decoder = watched
    assert together(decoder, failing) == together(decoder)
    assert (failing.finish_reason, str(failing.error)) == ("error", "a hook")


def test_a_proposer_that_raises_for_one_sequence_ends_only_that_one(decoder: Decoder) -> None:
    class Failing(PromptLookup):
        def propose(self, sequences: list[Sequence], rooms: list[int]) -> list[list[int]]:
            if any(sequence.sample == 1 for sequence in sequences):
                raise UsageError("no guess")
            return super().propose(sequences, rooms)

    failing = make_sequence([1, 2, 3], 1)
    assert tokens_of(together(decoder, failing, proposer=Failing())) == tokens_of(together(decoder))
    assert (failing.finish_reason, len(failing.generated)) == ("error", 1)


def test_a_list_of_sequences_raises_what_ends_one_of_them(decoder: Decoder) -> None:
    failing, other = make_sequence([1, 2, 3], 1), make_sequence([4], 2, max_tokens=30)
    fail_at_the_third(failing)
    scheduler = Scheduler(decoder)
    with pytest.raises(RuntimeError, match="a stop rule"):
        list(run(scheduler, [other, failing]))
    assert other.finish_reason == "cancelled"
    assert_nothing_is_leaked(scheduler)


def test_a_signal_is_not_the_failure_of_a_sequence(decoder: Decoder) -> None:
    class Stopped(Sampler):
        def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
            raise Interrupted("stopped by SIGTERM", 143)

    scheduler = Scheduler(decoder)
    scheduler.add(make_sequence([1], sampler=Stopped(SamplingConfig())))
    with pytest.raises(Interrupted):
        finish(scheduler)


def test_items_are_tried_alone_where_they_fail_together() -> None:
    def inverse(items: list[int]) -> list[float]:
        return [1 / item for item in items]

    first, second, third = separately(inverse, [1, 0, 2])
    assert (first, third) == (1.0, 0.5)
    assert isinstance(second, ZeroDivisionError)


def test_sequences_share_cached_blocks_only_with_their_own_key_and_salt(decoder: Decoder) -> None:
    scheduler, read = Scheduler(decoder), []
    for key, salt in (("a", ""), ("a", ""), ("b", ""), ("a", "x")):
        sequence = Sequence([5] * 64, rules=make_sequence([1], sampler=SAMPLERS[0], max_tokens=1).rules)
        sequence.key, sequence.cache_salt = key, salt
        scheduler.add(sequence)
        scheduler._admit()
        read.append(sequence.num_cached)
        finish(scheduler)
    assert [count > 0 for count in read] == [False, True, False, False]


def test_greedy_sequences_of_different_samplers_are_one_call(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a server, where each request has its own sampler; subclasses and random draws stay apart."""

    class Own(Sampler):
        pass

    calls: list[int] = []
    call = Sampler.__call__
    monkeypatch.setattr(
        Sampler, "__call__", lambda self, logits, *rest: calls.append(len(logits)) or call(self, logits, *rest)
    )
    greedy = [SamplingConfig(temperature=0, seed=seed) for seed in range(3)]
    samplers = [*map(Sampler, greedy), Own(greedy[0]), Sampler(SamplingConfig(seed=1)), Sampler(SamplingConfig(seed=2))]
    rows = [LogitsRow(Sequence([1, 2], rules=Rules(sampler, 5)), []) for sampler in samplers]
    logits = torch.randn(len(rows), decoder.config.vocab_size)
    chosen = choose(rows, logits)
    assert sorted(calls) == [1, 1, 1, 3]
    assert chosen[:4] == [ChosenToken(token, None) for token in logits[:4].argmax(-1).tolist()]
    assert chosen[4:] == [choose([row], logits[[index]])[0] for index, row in enumerate(rows[4:], 4)]

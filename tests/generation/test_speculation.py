"""Guessed tokens save passes, and change no text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.generation.batch_generation import make_scheduler, run
from foretell.generation.block_table import common_length
from foretell.generation.engine import Engine
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Rules, Sequence
from foretell.generation.speculation import DraftModel, PromptLookup, Proposer, last_occurrence
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder

CONTEXT, VOCABULARY = 48, 5  # so few tokens that the last ones often occurred before
PROMPTS = [[1, 2, 3, 1, 2], [4], [0, 1, 0, 1, 0, 1, 0], [3, 2, 1]]
SAMPLINGS = {"greedy": SamplingConfig(temperature=0), "sampled": SamplingConfig(temperature=1.2, top_p=0.9, seed=3)}


def new_decoder(seed: int, context: int = CONTEXT) -> Decoder:
    sizes = {"num_layers": 1, "num_heads": 2, "width": 16, "context_length": context, "vocab_size": VOCABULARY}
    decoder = make_decoder(make_section(ModelConfig, sizes), seed).double().eval().requires_grad_(False)
    for parameter in decoder.parameters():
        parameter.mul_(3)
    return decoder


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return new_decoder(1)


class WrongGuesses:
    """Guesses that are rarely right."""

    num_tokens = 5

    def propose(self, sequences: list[Sequence], rooms: list[int]) -> list[list[int]]:
        return [
            [(sum(each.ids) + index) % VOCABULARY for index in range(min(room, 5))]
            for each, room in zip(sequences, rooms, strict=True)
        ]

    def release(self, sequence: Sequence) -> None:
        pass


PROPOSERS: dict[str, Any] = {
    "prompt lookup": PromptLookup,
    "wrong guesses": WrongGuesses,
    "draft": lambda: DraftModel(new_decoder(2)),
    "draft with a short context": lambda: DraftModel(new_decoder(2, context=20)),
    "the model itself": lambda: DraftModel(new_decoder(1)),
}


def continued(decoder: Decoder, sampling: SamplingConfig, proposer: Proposer | None, **rules: Any) -> list[Sequence]:
    values: dict[str, Any] = {"max_tokens": 30, **rules}
    sequences = [
        Sequence(prompt, sample, rules=Rules(Sampler(sampling), **values)) for sample, prompt in enumerate(PROMPTS)
    ]
    list(run(make_scheduler(decoder, sequences, proposer), sequences))
    return sequences


@pytest.mark.parametrize(
    "rules",
    [
        {},
        pytest.param({"max_tokens": None}, marks=pytest.mark.long),
        pytest.param({"end_ids": frozenset([2])}, marks=pytest.mark.long),
        {"slide": True, "max_tokens": 90},
    ],
    ids=str,
)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_guesses_change_no_text(
    decoder: Decoder, proposer: str, sampling: SamplingConfig, rules: dict[str, Any]
) -> None:
    expected = continued(decoder, sampling, None, **rules)
    actual = continued(decoder, sampling, PROPOSERS[proposer](), **rules)
    assert [each.generated for each in actual] == [each.generated for each in expected]
    assert [each.finish_reason for each in actual] == [each.finish_reason for each in expected]


def test_a_guess_that_is_accepted_unchecked_changes_the_text(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = continued(decoder, SAMPLINGS["sampled"], None)
    read = Engine.read

    def read_without_the_guesses(engine: Engine, sequences: Any, tokens: list[list[int]], num_logits: list[int]) -> Any:
        blind = [[row[0]] * len(row) if wanted > 1 else row for row, wanted in zip(tokens, num_logits, strict=True)]
        return read(engine, sequences, blind, num_logits)

    monkeypatch.setattr(Engine, "read", read_without_the_guesses)
    actual = continued(decoder, SAMPLINGS["sampled"], DraftModel(new_decoder(1)))
    assert [each.generated for each in actual] != [each.generated for each in expected]


def test_a_perfect_draft_needs_few_passes(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Decoder] = []
    read = Engine.read
    monkeypatch.setattr(Engine, "read", lambda *arguments: passes.append(arguments[0].decoder) or read(*arguments))
    continued(decoder, SAMPLINGS["sampled"], DraftModel(new_decoder(1), num_tokens=4))
    assert passes.count(decoder) <= 1 + -(-29 // 5)


def test_prompt_lookup_continues_the_latest_occurrence_of_the_longest_ending() -> None:
    (guess,) = PromptLookup(3).propose([Sequence([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3])], [10])
    assert guess == [4, 9, 2]
    (guess,) = PromptLookup(3).propose([Sequence([7, 3, 4, 8, 3, 5, 6, 3])], [2])
    assert guess == [5, 6]
    assert PromptLookup().propose([Sequence([1, 2, 3])], [10]) == [[]]


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_the_last_occurrence_is_that_of_a_plain_search(ids: list[int], pattern: list[int]) -> None:
    places = [place for place in range(len(ids)) if ids[place : place + len(pattern)] == pattern]
    assert last_occurrence(ids, pattern) == (places[-1] if places else None)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_length_is_that_of_the_longest_common_beginning(first: list[int], second: list[int]) -> None:
    length = common_length(first, second)
    assert first[:length] == second[:length]
    assert length == min(len(first), len(second)) or first[length] != second[length]

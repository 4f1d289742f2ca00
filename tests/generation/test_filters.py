"""Filters compared with plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.config.sampling import SamplingConfig
from foretell.errors import ConfigError
from foretell.generation.filters import (
    Filter,
    Prefix,
    ban,
    frequency_penalty,
    logit_bias,
    make_filters,
    min_p,
    min_tokens,
    narrow,
    no_repeat_ngram,
    odds,
    presence_penalty,
    repetition_penalty,
    temperature,
    top_k,
    top_p,
)

# with small whole numbers, so that ties are common
LOGITS = st.lists(st.integers(-3, 3).map(float) | st.floats(-20, 20), min_size=1, max_size=8)
IDS = st.lists(st.integers(0, 3), max_size=12)


def filtered(apply: Filter, logits: list[float], ids: list[int] | None = None) -> list[float]:
    return apply(torch.tensor([logits], dtype=torch.float64), [Prefix(ids or [])])[0].tolist()


def kept(apply: Filter, logits: list[float], ids: list[int] | None = None) -> set[int]:
    """The ids that a filter leaves, whose logits it must not change."""
    result = filtered(apply, logits, ids)
    assert all(after in (before, -math.inf) for before, after in zip(logits, result, strict=True))
    return {token for token, value in enumerate(result) if value > -math.inf}


def softmax(logits: list[float]) -> list[float]:
    odds = [math.exp(value - max(logits)) for value in logits]
    return [value / sum(odds) for value in odds]


@given(logits=LOGITS, count=st.integers(1, 10))
def test_top_k_keeps_the_k_largest_and_ties_with_the_last_of_them(logits: list[float], count: int) -> None:
    smallest = sorted(logits, reverse=True)[:count][-1]
    assert kept(top_k(count), logits) == {token for token, value in enumerate(logits) if value >= smallest}


@given(logits=LOGITS, share=st.floats(0.001, 1))
def test_min_p_drops_tokens_less_likely_than_a_share_of_the_most_likely(logits: list[float], share: float) -> None:
    probabilities = softmax(logits)
    found = kept(min_p(share), logits)
    for token, probability in enumerate(probabilities):
        if not math.isclose(probability, share * max(probabilities)):
            assert (token in found) == (probability > share * max(probabilities))
        elif share == 1:
            assert token in found


@given(logits=LOGITS, mass=st.floats(0.001, 0.999))
def test_top_p_keeps_the_fewest_likely_tokens_that_reach_the_mass(logits: list[float], mass: float) -> None:
    probabilities, weights = softmax(logits), odds(torch.tensor(logits, dtype=torch.float64)).tolist()
    found = kept(top_p(mass), logits)
    by_likelihood = sorted(range(len(logits)), key=lambda token: (-weights[token], token))
    assert found == set(by_likelihood[: len(found)])  # of equally likely ones the first
    *all_but_last, last = [probabilities[token] for token in by_likelihood[: len(found)]]
    rounding = 1e-9
    assert sum(all_but_last) < mass + rounding
    assert sum(all_but_last) + last > mass - rounding


def test_top_p_stops_exactly_where_the_mass_is_reached() -> None:
    logits = [math.log(value) for value in (0.5, 0.25, 0.125, 0.125)]
    assert kept(top_p(0.5), logits) == {0}
    assert kept(top_p(0.51), logits) == {0, 1}


@given(logits=LOGITS, penalty=st.floats(0.1, 10), ids=st.lists(st.integers(0, 7), max_size=6))
def test_the_repetition_penalty_moves_each_token_that_occurred_once(
    logits: list[float], penalty: float, ids: list[int]
) -> None:
    ids = [token for token in ids if token < len(logits)]
    expected = [
        value if token not in ids else value / penalty if value > 0 else value * penalty
        for token, value in enumerate(logits)
    ]
    assert filtered(repetition_penalty(penalty), logits, ids) == expected


def test_the_repetition_penalty_looks_at_each_rows_own_ids() -> None:
    logits = torch.tensor([[2.0, -2.0], [2.0, -2.0]])
    assert repetition_penalty(2)(logits, [Prefix([0]), Prefix([1])]).tolist() == [[1, -2], [2, -4]]
    assert logits.tolist() == [[2, -2], [2, -2]]  # the input is not changed


@given(logits=LOGITS, penalty=st.floats(-2, 2), ids=st.lists(st.integers(0, 7), max_size=8), start=st.integers(0, 8))
def test_frequency_and_presence_penalties_count_the_generated_tokens_alone(
    logits: list[float], penalty: float, ids: list[int], start: int
) -> None:
    ids = [token for token in ids if token < len(logits)]
    prefix, generated = [Prefix(ids, start)], ids[start:]
    row = torch.tensor([logits], dtype=torch.float64)
    by_count = [value - penalty * generated.count(token) for token, value in enumerate(logits)]
    assert frequency_penalty(penalty)(row, prefix)[0].tolist() == by_count
    once = [value - penalty if token in generated else value for token, value in enumerate(logits)]
    assert presence_penalty(penalty)(row, prefix)[0].tolist() == once
    assert row[0].tolist() == logits  # the input is not changed


@given(logits=LOGITS, value=st.floats(0.05, 20))
def test_the_temperature_divides(logits: list[float], value: float) -> None:
    largest = max(logits)  # stays at 0, so that a tiny temperature cannot overflow
    assert filtered(temperature(value), logits) == [(logit - largest) / value for logit in logits]


def test_a_tiny_temperature_gives_no_nan() -> None:
    assert softmax(filtered(temperature(1e-310), [1.0, 3.0, 2.0])) == [0.0, 1.0, 0.0]


@given(logits=LOGITS)
def test_temperature_0_keeps_the_first_of_the_largest(logits: list[float]) -> None:
    result = filtered(temperature(0), logits)
    assert [token for token, value in enumerate(result) if value > -math.inf] == [logits.index(max(logits))]
    assert softmax(result) == [1.0 if token == logits.index(max(logits)) else 0.0 for token in range(len(logits))]


@pytest.mark.parametrize(
    "apply", [top_k(2), top_p(0.7), min_p(0.3), temperature(0.5), temperature(0)], ids=lambda apply: apply.__qualname__
)
def test_a_row_is_filtered_the_same_alone_or_with_others(apply: Filter) -> None:
    logits = torch.tensor([[1.0, 2, 3, 4], [4, 4, 0, -1], [0, 0, 0, 0]], dtype=torch.float64)
    together = apply(logits, [Prefix([])] * 3)
    assert torch.equal(together, torch.cat([apply(row[None], [Prefix([])]) for row in logits]))


@given(logits=LOGITS, biases=st.dictionaries(st.integers(0, 7), st.floats(-9, 9), min_size=1))
def test_a_logit_bias_is_added_to_its_tokens(logits: list[float], biases: dict[int, float]) -> None:
    biases = {token: bias for token, bias in biases.items() if token < len(logits)}
    expected = [value + biases.get(token, 0.0) for token, value in enumerate(logits)]
    assert filtered(logit_bias(biases), logits) == expected


@given(ids=IDS, prompt_length=st.integers(0, 12), count=st.integers(0, 12))
def test_end_tokens_are_impossible_until_min_tokens_are_generated(
    ids: list[int], prompt_length: int, count: int
) -> None:
    prefix = Prefix(ids, min(prompt_length, len(ids)), frozenset([1, 3]))
    result = min_tokens(count)(torch.zeros(1, 5), [prefix])[0]
    excluded = [1, 3] if len(prefix.generated) < count else []
    assert (result == -math.inf).nonzero()[:, 0].tolist() == excluded


@given(ids=IDS, words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=3))
def test_a_banned_word_cannot_be_completed(ids: list[int], words: list[list[int]]) -> None:
    allowed = kept(ban(words), [0.0] * 4, ids)
    for token in range(4):
        written = [*ids, token]
        assert (token in allowed) == all(written[-len(word) :] != word for word in words)


@given(ids=IDS, size=st.integers(1, 5))
def test_no_ngram_occurs_twice(ids: list[int], size: int) -> None:
    allowed = kept(no_repeat_ngram(size), [0.0] * 4, ids)
    earlier = [ids[index : index + size] for index in range(len(ids) - size + 1)]
    for token in range(4):
        assert (token in allowed) == ([*ids, token][-size:] not in earlier or len(ids) + 1 < size)


@pytest.mark.parametrize("apply", [logit_bias({4: 1.0}), ban([[4]])], ids=["logit bias", "ban"])
def test_a_token_outside_the_vocabulary_is_named(apply: Filter) -> None:
    with pytest.raises(ConfigError, match="names token 4, but the ids of this model are 0 to 3"):
        filtered(apply, [0.0] * 4)


# --- which filters run, and in which order ---------------------------------------------------------------------------

ALL_FILTERS: dict[str, Any] = {
    "min_p": 0.1,
    "top_p": 0.9,
    "top_k": 3,
    "temperature": 0.5,
    "repetition_penalty": 1.2,
    "no_repeat_ngram": 2,
    "ban": [[1, 2]],
    "min_tokens": 4,
    "logit_bias": {1: 2.0},
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "regex": "a",
}
NEUTRAL: dict[str, Any] = {"temperature": 1, "top_p": 1}  # the model's own distribution


def test_filters_run_in_the_order_of_the_configuration() -> None:
    fields = [name for name in SamplingConfig.model_fields if name not in ("seed", "json_schema")]
    assert list(make_filters(SamplingConfig(**ALL_FILTERS), constraint=top_k(1))) == fields
    of_schema: dict[str, Any] = {**ALL_FILTERS, "regex": None, "json_schema": {}}
    assert list(make_filters(SamplingConfig(**of_schema), constraint=top_k(1))).index("json_schema") == fields.index(
        "regex"
    )


def test_filters_that_would_do_nothing_do_not_run() -> None:
    assert make_filters(SamplingConfig(**NEUTRAL)) == {}


@pytest.mark.filterwarnings("error")
def test_the_smallest_temperature_keeps_the_likeliest_token_without_a_warning() -> None:
    _, left = narrow(np.array([1.0, 3.0, 2.0]), {"temperature": 1e-320})
    assert left.tolist() == [-math.inf, 0.0, -math.inf]

"""Filters compared with plain Python, and draws compared with the distribution."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foretell.config import SamplingConfig
from foretell.generation.sampling import (
    Filter,
    Sampler,
    make_filters,
    min_p,
    pick,
    repetition_penalty,
    temperature,
    top_k,
    top_p,
)
from foretell.randomness import stream_key, uniform

LARGEST_DRAW = 1 - 2**-53

# with small whole numbers, so that ties are common
LOGITS = st.lists(st.integers(-3, 3).map(float) | st.floats(-20, 20), min_size=1, max_size=8)


def filtered(apply: Filter, logits: list[float], ids: list[int] | None = None) -> list[float]:
    return apply(torch.tensor([logits], dtype=torch.float64), [ids or []])[0].tolist()


def kept(apply: Filter, logits: list[float]) -> set[int]:
    """The ids that a filter leaves, whose logits it must not change."""
    result = filtered(apply, logits)
    assert all(after in (before, -math.inf) for before, after in zip(logits, result, strict=True))
    return {token for token, value in enumerate(result) if value > -math.inf}


def softmax(logits: list[float]) -> list[float]:
    odds = [math.exp(value - max(logits)) for value in logits]
    return [value / sum(odds) for value in odds]


# --- filters ---------------------------------------------------------------------------------------------------------


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
    probabilities = softmax(logits)
    found = kept(top_p(mass), logits)
    by_likelihood = sorted(range(len(logits)), key=lambda token: (-probabilities[token], token))
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
    assert repetition_penalty(2)(logits, [[0], [1]]).tolist() == [[1, -2], [2, -4]]
    assert logits.tolist() == [[2, -2], [2, -2]]  # the input is not changed


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
    together = apply(logits, [[], [], []])
    assert torch.equal(together, torch.cat([apply(row[None], [[]]) for row in logits]))


# --- which filters run, and in which order ---------------------------------------------------------------------------

ALL_FILTERS: dict[str, Any] = {"min_p": 0.1, "top_p": 0.9, "top_k": 3, "temperature": 0.5, "repetition_penalty": 1.2}
NEUTRAL: dict[str, Any] = {"temperature": 1, "top_p": 1}  # the model's own distribution


def test_filters_run_in_the_order_of_the_configuration() -> None:
    fields = [name for name in SamplingConfig.model_fields if name != "seed"]
    assert list(make_filters(SamplingConfig(**ALL_FILTERS))) == fields


def test_filters_that_would_do_nothing_do_not_run() -> None:
    assert make_filters(SamplingConfig(**NEUTRAL)) == {}


def test_top_p_looks_at_probabilities_after_the_temperature() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.3]]).double().log()
    cold = Sampler(SamplingConfig(temperature=0.05, top_p=0.9))
    hot = Sampler(SamplingConfig(temperature=1, top_p=0.9))
    assert {token for sample in range(100) for token in cold(logits, [[]], [sample])} == {0}
    assert {token for sample in range(100) for token in hot(logits, [[]], [sample])} == {0, 1, 2}


# --- draws -----------------------------------------------------------------------------------------------------------


def picked_by_hand(weights: list[float], draw: float) -> int:
    """The first id at which the running sum exceeds the draw's share of the total."""
    running, total = 0.0, sum(weights)
    for token, weight in enumerate(weights):
        running += weight
        if running > draw * total:
            return token
    return max(token for token, weight in enumerate(weights) if weight > 0)


@given(
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any),
    draw=st.integers(0, 2**53 - 1).map(lambda word: word * 2.0**-53),
)
def test_pick_takes_the_id_at_which_the_running_sum_exceeds_the_draw(weights: list[int], draw: float) -> None:
    row = torch.tensor([weights], dtype=torch.float64)  # sums of small whole numbers are exact
    assert pick(row, [draw]) == [picked_by_hand([float(weight) for weight in weights], draw)]


@given(
    logits=st.lists(st.floats(-800, 800) | st.just(-math.inf), min_size=1, max_size=10).filter(
        lambda logits: max(logits) > -math.inf
    ),
    draw=st.sampled_from([0.0, 5e-324, 2**-53, 0.5, 1 - 2**-52, LARGEST_DRAW]) | st.floats(0, LARGEST_DRAW),
    dtype=st.sampled_from([torch.float64, torch.float32]),  # where the largest draw is rounded to 1
)
def test_a_token_of_probability_0_is_never_picked(logits: list[float], draw: float, dtype: torch.dtype) -> None:
    probabilities = torch.tensor([logits], dtype=dtype).softmax(-1)
    assert probabilities[0, pick(probabilities, [draw])[0]] > 0


def test_evenly_spread_draws_give_each_id_its_share() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.25, 0.05, 0.6, 0.0], dtype=torch.float64)
    draws = [(index + 0.5) / 1000 for index in range(1000)]
    counts = torch.tensor(pick(probabilities.expand(1000, -1), draws)).bincount(minlength=6)
    assert counts.tolist() == [100, 0, 250, 50, 600, 0]


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_samples_follow_the_distribution() -> None:
    logits = torch.linspace(-2, 2, 10, dtype=torch.float64)
    tokens = Sampler(SamplingConfig(**NEUTRAL))(logits.expand(5000, -1), [[1, 2]] * 5000, list(range(5000)))
    counts = torch.tensor(tokens).bincount(minlength=10)
    assert chi_square(counts, logits.softmax(-1)) < 27.9  # 9 degrees of freedom: exceeded once in a thousand
    assert chi_square(counts, torch.full((10,), 0.1)) > 100  # so another distribution would be noticed


def test_the_draw_of_a_sample_depends_on_its_seed_its_index_and_its_position() -> None:
    assert Sampler(SamplingConfig(seed=3)).draw(5, 7) == uniform(stream_key("sample", 3, 5), 7)
    draws = {Sampler(SamplingConfig(seed=seed)).draw(i, t) for seed in range(3) for i in range(3) for t in range(3)}
    assert len(draws) == 27


def test_bfloat16_logits_are_sampled_like_the_same_numbers_in_float64() -> None:
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    sampler, history, samples = Sampler(SamplingConfig(temperature=0.7)), [[1]] * 200, list(range(200))
    assert sampler(logits, history, samples) == sampler(logits.double(), history, samples)


def test_a_sample_draws_the_same_at_any_row_of_a_batch() -> None:
    sampler = Sampler(SamplingConfig(seed=1))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 50, generator=generator)
    history = [[1], [1, 2], [1, 2, 3], [4]]
    together = sampler(logits, history, [0, 1, 2, 3])
    assert sampler(logits.flip(0), history[::-1], [3, 2, 1, 0]) == together[::-1]
    assert [sampler(logits[row, None], [history[row]], [row])[0] for row in range(4)] == together


def test_this_suite_notices_a_filter_that_looks_across_rows() -> None:
    sampler = Sampler(SamplingConfig(seed=1))
    sampler.filters["across"] = lambda logits, history: logits + 10 * logits.mean(0)
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    together = sampler(logits, [[1]] * 4, [0, 1, 2, 3])
    assert [sampler(logits[row, None], [[1]], [row])[0] for row in range(4)] != together

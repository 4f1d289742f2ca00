"""Draws compared with the distribution, and samples with the filters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foretell.config.sampling import SamplingConfig
from foretell.errors import CheckpointError, UsageError
from foretell.generation import sampling
from foretell.generation.filters import SHAPING, Prefix, Prefixes, odds
from foretell.generation.sampling import Sampler, largest, largest_on_gpu, pick
from foretell.numerics.randomness import stream_key, uniform

LARGEST_DRAW = 1 - 2**-53
NEUTRAL: dict[str, Any] = {"temperature": 1, "top_p": 1}  # the model's own distribution
EMPTY = Prefix([])


def after(*ids: int) -> Prefix:
    return Prefix(list(ids))


def test_top_p_looks_at_probabilities_after_the_temperature() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.3]]).double().log()
    cold = Sampler(SamplingConfig(temperature=0.05, top_p=0.9))
    hot = Sampler(SamplingConfig(temperature=1, top_p=0.9))
    assert {token for sample in range(100) for token in cold(logits, [EMPTY], [sample])} == {0}
    assert {token for sample in range(100) for token in hot(logits, [EMPTY], [sample])} == {0, 1, 2}


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
    tokens = Sampler(SamplingConfig(**NEUTRAL))(logits.expand(5000, -1), [after(1, 2)] * 5000, list(range(5000)))
    counts = torch.tensor(tokens).bincount(minlength=10)
    assert chi_square(counts, logits.softmax(-1)) < 27.9  # 9 degrees of freedom: exceeded once in a thousand
    assert chi_square(counts, torch.full((10,), 0.1)) > 100  # so another distribution would be noticed


def test_the_draw_of_a_sample_depends_on_its_seed_its_index_and_its_position() -> None:
    assert Sampler(SamplingConfig(seed=3)).draw(5, 7) == uniform(stream_key("sample", 3, 5), 7)
    draws = {Sampler(SamplingConfig(seed=seed)).draw(i, t) for seed in range(3) for i in range(3) for t in range(3)}
    assert len(draws) == 27


def test_bfloat16_logits_are_sampled_like_the_same_numbers_in_float64() -> None:
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    sampler, history, samples = Sampler(SamplingConfig(temperature=0.7)), [after(1)] * 200, list(range(200))
    assert sampler(logits, history, samples) == sampler(logits.double(), history, samples)


def test_a_sample_draws_the_same_at_any_row_of_a_batch() -> None:
    sampler = Sampler(SamplingConfig(seed=1))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 50, generator=generator)
    history = [after(1), after(1, 2), after(1, 2, 3), after(4)]
    together = sampler(logits, history, [0, 1, 2, 3])
    assert sampler(logits.flip(0), history[::-1], [3, 2, 1, 0]) == together[::-1]
    assert [sampler(logits[row, None], [history[row]], [row])[0] for row in range(4)] == together


class MixingSampler(Sampler):
    """A broken sampler, whose rows depend on each other."""

    def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
        return super().__call__(logits + 10 * logits.mean(0), prefixes, samples)


def test_rows_that_are_sampled_together_are_those_sampled_alone() -> None:
    logits = 3 * torch.randn(70, 1023, generator=torch.Generator().manual_seed(5))
    sampler = Sampler(SamplingConfig(temperature=1.0, top_p=1.0, seed=3))
    assert not sampler.filters
    prefixes, samples = [Prefix([1])] * len(logits), list(range(len(logits)))
    alone = [sampler._sample(row, prefixes[0], sampler.draw(at, 1)) for at, row in enumerate(logits.split(1))]
    assert sampler(logits, prefixes, samples) == alone


def test_this_suite_detects_a_sampler_that_mixes_rows() -> None:
    sampler = MixingSampler(SamplingConfig(seed=1))
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    together = sampler(logits, [after(1)] * 4, [0, 1, 2, 3])
    assert [sampler(logits[row, None], [after(1)], [row])[0] for row in range(4)] != together


# --- samples and the filters -----------------------------------------------------------------------------------------

SETTINGS = st.builds(
    SamplingConfig,
    repetition_penalty=st.just(1.0) | st.floats(0.5, 2),
    logit_bias=st.dictionaries(st.integers(0, 9), st.integers(-3, 3), max_size=2),
    ban=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=2), max_size=2),
    no_repeat_ngram=st.none() | st.integers(2, 4),
    temperature=st.sampled_from([0.0, 0.8, 1.0]) | st.floats(0.01, 5),
    top_k=st.none() | st.integers(1, 300),
    top_p=st.sampled_from([1.0, 0.95, 0.5]) | st.floats(0.01, 1),
    min_p=st.just(0.0) | st.floats(0, 1),
)


def some_logits(seed: int, size: int, scale: float, step: float) -> Tensor:
    """Three rows of random logits in float32; a step above 0 makes ties of them."""
    logits = scale * torch.randn(3, size, generator=torch.Generator().manual_seed(seed))
    return (logits / step).round() * step if step else logits


@given(
    config=SETTINGS,
    seed=st.integers(0, 10**6),
    size=st.sampled_from([10, 300, 5000]),
    scale=st.sampled_from([0.1, 1.0, 4.0]),
    step=st.sampled_from([0.0, 0.25, 1.0]),
)
def test_a_sampler_draws_what_the_filters_over_the_whole_vocabulary_leave(
    config: SamplingConfig, seed: int, size: int, scale: float, step: float
) -> None:
    logits, prefixes = some_logits(seed, size, scale, step), [after(1, 2, 1), after(3), after(4, 4, 4, 4)]
    sampler = Sampler(config)
    *_, (_, filtered) = sampler.stages(logits, prefixes)
    draws = [sampler.draw(sample, len(prefix.ids)) for sample, prefix in enumerate(prefixes)]
    assert sampler(logits, prefixes, [0, 1, 2]) == pick(odds(filtered), draws)


def test_a_filter_without_a_form_for_one_row_runs_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    config, prefixes = SamplingConfig(temperature=2.5, min_p=0.2, top_p=1.0), [Prefix([1])]
    usual = Sampler(config)
    monkeypatch.setattr(sampling, "SHAPING", SHAPING - {"min_p"})  # as a new filter that has no entry in KEEP
    plain = Sampler(config)
    draws = [[sampler(logits, prefixes, [sample])[0] for sample in range(300)] for sampler in (usual, plain)]
    assert draws[0] == draws[1]
    excluded_first = logits.where(logits >= logits.max() + math.log(0.2), -math.inf)
    assert not set(draws[0]) <= set(excluded_first[0].isfinite().nonzero()[:, 0].tolist())  # the order matters here


def test_filters_that_leave_no_token_are_named() -> None:
    sampler = Sampler(SamplingConfig(no_repeat_ngram=1))
    with pytest.raises(UsageError, match="no-repeat-ngram leaves no token to sample"):
        sampler(torch.zeros(1, 3), [after(0, 1, 2)], [0])


@pytest.mark.parametrize("choose", [largest, largest_on_gpu])
def test_the_largest_logit_wins_ties_go_to_the_first_and_numbers_that_are_not_finite_are_refused(choose: Any) -> None:
    assert choose(torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -2.0, -5.0]])) == [1, 1]
    for number in (torch.inf, torch.nan):
        with pytest.raises(CheckpointError, match="not finite"):
            choose(torch.tensor([[1.0, 2.0], [0.0, number]]))

"""Synthetic series: a function of seed and index, finite, of many kinds; and windows of them."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.forecasting import synthetic
from foretell.forecasting.codec import cycle_of, scale_of
from foretell.forecasting.synthetic import KIND_SHARES, KINDS, synthetic_series

RNG = np.random.default_rng


def test_a_series_is_a_function_of_seed_and_index():
    assert np.array_equal(synthetic_series(1, 5, 60), synthetic_series(1, 5, 60))
    assert not np.array_equal(synthetic_series(1, 5, 60), synthetic_series(1, 6, 60))
    assert not np.array_equal(synthetic_series(1, 5, 60), synthetic_series(2, 5, 60))


def test_series_are_finite_and_most_vary():
    made = [synthetic_series(3, index, 50) for index in range(80)]
    assert all(np.isfinite(values).all() and values.shape == (50,) for values in made)
    assert sum(values.std() > 0 for values in made) > 70
    assert sum(KIND_SHARES) == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_makes_different_series_of_a_length(kind):
    first, second = kind(RNG(0), 40), kind(RNG(1), 40)
    assert first.shape == second.shape == (40,)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("cycle", synthetic.CYCLES, ids=lambda cycle: cycle.__name__)
def test_a_season_repeats_its_cycle(cycle, monkeypatch):
    monkeypatch.setattr(synthetic, "CYCLES", (cycle,))
    kept = [synthetic.season(RNG(seed), 48, 12) for seed in range(12)]
    assert any(np.allclose(values[:12], values[12:24]) and values.std() > 0 for values in kept)
    assert not all(np.allclose(values[:12], values[12:24]) for values in kept)  # some change in time


def test_counts_are_whole_and_prices_positive():
    assert all((values := synthetic.counts(RNG(seed), 30)).min() >= 0 and (values % 1 == 0).all() for seed in range(9))
    assert all(synthetic.price(RNG(seed), 30).min() > 0 for seed in range(9))


def test_some_series_grow_and_then_stay_constant_or_stop():
    made = [synthetic.phases(RNG(seed), 60) for seed in range(60)]
    is_flat = [(np.diff(values[-8:]) == 0).all() and values.std() > 0 for values in made]
    assert 0 < sum(is_flat) < 30
    stopped = [synthetic.spoil(RNG(seed), np.arange(60.0)) for seed in range(200)]
    assert {float(values[-1]) == 0 for values in stopped if (np.diff(values[-4:]) == 0).all()} == {True, False}


# --- the cycle that a codec subtracts ---------------------------------------------------------------------------------


def test_a_cycle_is_found_and_begins_after_the_last_value():
    times = np.arange(41)
    values = 3.0 * times + 10 * (times % 4 == 1)
    cycle = cycle_of(values, 4)  # the next time is 41, where 41 % 4 == 1
    assert cycle.argmax() == 0
    assert cycle == pytest.approx([7.5, -2.5, -2.5, -2.5], abs=0.1)


def test_the_cycle_of_noise_is_shrunk_and_a_short_series_has_none():
    noise = RNG(0).standard_normal(60)
    assert np.abs(cycle_of(noise, 12)).max() < 0.5
    assert (cycle_of(noise[:23], 12) == 0).all()
    assert (cycle_of(np.full(40, np.nan), 4) == 0).all()


def days(levels: np.ndarray) -> np.ndarray:
    """Hours: each day is twelve of its level, then twelve of one more."""
    return (levels[:, None] + (np.arange(24) > 11)).ravel().astype(float)


def test_hours_have_the_cycle_of_a_week_if_the_last_week_confirms_it():
    weeks = np.array([1, 1, 1, 1, 1, 0, 0] * 4)
    cycle = cycle_of(days(weeks)[:-48], 24)  # the next time is a Saturday
    expected = days(np.array([0, 0, 1, 1, 1, 1, 1]))
    np.testing.assert_allclose(cycle, expected - expected.mean(), atol=0.05)
    for levels in (weeks[-14:], np.append(weeks[:-7], weeks[-10:-3]), np.random.default_rng(1).random(28)):
        assert len(cycle_of(days(levels), 24)) == 24  # two weeks alone, a week that begins three days later, no weeks
    assert len(cycle_of(days(weeks), 12)) == 12


def test_missing_values_do_not_count_in_a_week():
    values = days(np.array([1, 1, 1, 1, 1, 0, 0] * 4))
    values[5::11] = np.nan
    assert np.isfinite(cycle_of(values, 24)).all() and len(cycle_of(values, 24)) == 168
    values[-168:] = np.nan
    assert len(cycle_of(values, 24)) == 24


def test_values_before_the_context_help_to_find_the_cycle():
    values = np.tile([0.0, 0, 8, 0], 10)
    assert scale_of(values[-4:], 4).cycle == (0, 0, 0, 0)
    assert scale_of(values[-4:], 4, values[:-4]).cycle == pytest.approx((-2, -2, 6, -2), abs=0.1)

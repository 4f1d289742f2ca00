"""The season: given, usual for the times, or found in the values."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.errors import UsageError
from foretell.forecasting.series import (
    Series,
    choose_season,
    choose_seasons,
    default_horizon,
    find_season,
    find_timeline,
    numbered,
)

NOISE = np.random.default_rng(0)
PERIOD = 6
WAVE = np.tile([0.0, 5, 9, 9, 4, 1], 40)


def test_the_season_is_found_in_values_without_times():
    values = WAVE[:200] + NOISE.standard_normal(200) + 0.3 * np.arange(200)
    season, strength = find_season([values, values[:30]])
    assert season == PERIOD
    assert strength > 0.3


@pytest.mark.parametrize("values", [NOISE.standard_normal(300), np.ones(50), np.array([1.0, 2.0]), np.full(9, np.nan)])
def test_values_without_a_season_have_season_one(values):
    assert find_season([values])[0] == 1


@pytest.mark.parametrize("period", [24, 30])
def test_a_slow_wave_has_its_period_and_not_a_shorter_lag(period):
    noise = np.random.default_rng(0).normal(size=400)
    assert find_season([100 + 10 * np.sin(2 * np.pi * np.arange(400) / period) + noise])[0] == period


def test_a_smooth_series_has_no_season():
    assert find_season([np.exp(np.arange(300) / 30)])[0] == 1
    assert find_season([np.random.default_rng(0).normal(size=300).cumsum().cumsum()])[0] == 1


def test_what_is_given_or_usual_for_the_times_comes_first():
    hours, _ = find_timeline(["2024-01-01 00:00", "2024-01-01 01:00"], "x")
    series = [Series("a", WAVE, hours)]
    assert choose_season(series, None) == (24, "the usual one for steps of 1 hour")
    assert choose_season(series, 7) == (7, "as given")
    assert choose_season([Series("a", WAVE, numbered())], None)[0] == PERIOD
    for season in (0, len(WAVE) + 1):
        with pytest.raises(UsageError, match=f"the length of the longest series, not {season}"):
            choose_season(series, season)


def test_each_series_has_the_season_of_its_interval():
    hours, _ = find_timeline(["2024-01-01 00:00", "2024-01-01 01:00"], "x")
    months, _ = find_timeline(["2024-01-01", "2024-02-01", "2024-03-01"], "x")
    series = [Series("a", WAVE, hours), Series("b", WAVE, months), Series("c", WAVE, numbered())]
    seasons, why = choose_seasons(series, None)
    assert seasons == [24, 12, PERIOD]
    assert why == "24 for steps of 1 hour, 12 for steps of 1 month, 6 for steps of 1 number, since series have " + (
        "several intervals"
    )
    assert default_horizon(series, seasons) == 2 * PERIOD
    assert choose_seasons(series, 7) == ([7, 7, 7], "as given")
    assert choose_seasons(series[:1], None) == ([24], "the usual one for steps of 1 hour")

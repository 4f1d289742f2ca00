"""Errors of forecasts: computed by hand, and as the M4 competition defines them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foretell.forecasting.calibration import interval_of
from foretell.forecasting.metrics import (
    auto_ets,
    coverage,
    mase,
    mase_scale,
    over_known,
    quantile_loss,
    seasonal_naive,
    smape,
)

NAN = np.nan
HISTORY = np.array([1.0, 5.0, 2.0, 7.0])  # errors of the seasonal naive forecast of season 2: 1 and 2


def test_the_seasonal_naive_forecast_repeats_the_last_season():
    assert seasonal_naive(HISTORY, 2, 5).tolist() == [2, 7, 2, 7, 2]
    assert seasonal_naive(np.array([3.0, NAN, 4.0]), 2, 3).tolist() == [4, 4, 4]
    assert seasonal_naive(HISTORY, 9, 2).tolist() == [7, 7]


def test_a_value_missing_in_the_last_season_is_the_one_of_the_season_before():
    assert seasonal_naive(np.array([1.0, 5.0, 2.0, NAN, NAN, 9.0, 4.0]), 3, 4).tolist() == [5, 9, 4, 5]
    assert seasonal_naive(np.array([NAN, 5.0, 7.0, NAN, 6.0, NAN]), 3, 3).tolist() == [6, 6, 7]


def test_mase_divides_by_the_seasonal_error_of_the_history():
    assert mase_scale(HISTORY, 2) == 1.5
    assert mase(np.array([2.0, 7.0, NAN]), np.array([5.0, 7.0, 1.0]), HISTORY, 2) == 1.0
    assert math.isnan(mase_scale(HISTORY, 4))
    assert math.isnan(mase_scale(np.ones(8), 2))


def test_smape_is_in_percent_and_zero_where_both_are_zero():
    assert smape(np.array([1.0, 0.0]), np.array([3.0, 0.0])) == 50.0
    assert smape(np.array([-1.0]), np.array([1.0])) == 200.0


def test_the_quantile_loss_weighs_what_is_above_and_below():
    assert quantile_loss(np.array([10.0]), {0.9: np.array([8.0])}) == pytest.approx(2 * 0.9 * 2)
    assert quantile_loss(np.array([10.0]), {0.9: np.array([12.0])}) == pytest.approx(2 * 0.1 * 2)


@pytest.mark.parametrize("samples", [9, 20, 99])
def test_an_interval_holds_its_level_of_further_draws(samples):
    draws = np.random.default_rng(1).random((samples, 4000))
    low, high = interval_of(draws, 80)
    assert (high - low).mean() == pytest.approx(0.8, abs=0.01)  # the probability of a draw between them


def test_coverage_counts_known_values_inside():
    assert coverage(np.array([1.0, 2.0, 9.0, NAN]), np.zeros(4), np.full(4, 2.0)) == (2, 3)


def test_what_cannot_be_measured_is_left_out():
    assert (over_known(np.mean, [1.0, NAN, 3.0]), over_known(np.median, [NAN, 4.0])) == (2.0, 4.0)
    assert over_known(np.mean, [NAN]) is over_known(np.median, []) is None


def test_auto_ets_forecasts_short_seasonal_and_incomplete_series():
    pytest.importorskip("statsforecast", reason="statsforecast is not installed (foretell[forecast])")
    wave = np.tile([1.0, 3.0, 2.0], 12)
    np.testing.assert_allclose(auto_ets(wave, 3, 3), [1, 3, 2], atol=0.2)
    wave[5] = np.nan
    assert np.isfinite(auto_ets(wave, 3, 3)).all()
    for length in (1, 5, 12, 13, 30):
        assert np.isfinite(auto_ets(np.arange(30.0)[:length] % 7, 52, 2)).all()
    assert np.isfinite(auto_ets(np.ones(20), 4, 2)).all()

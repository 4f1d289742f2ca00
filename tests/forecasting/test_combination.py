"""Forecasts combined with a repeated season: the choice on held-out values, and where it applies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretell.forecasting.calibration import FEWEST_WINDOWS, Combination, HeldOut, choose_combination
from foretell.forecasting.forecaster import load_forecaster
from foretell.forecasting.metrics import seasonal_naive
from foretell.forecasting.series import Window
from foretell.forecasting.train import ForecastTraining
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter

SEASON = 6


def held_out(error: float, seed: int = 1) -> list[HeldOut]:
    """Windows of a noisy season, and paths around forecasts with an error of this size, in standard deviations of the
    noise."""
    rng = np.random.default_rng(seed)
    windows = []
    for _ in range(20):
        values = np.tile(5 * rng.normal(size=SEASON), 5) + rng.normal(size=5 * SEASON)
        window = Window(values, 4 * SEASON)
        center = window.actual + error * rng.normal(size=SEASON)
        paths = center + 0.1 * rng.normal(size=(30, SEASON))
        windows.append(HeldOut(**vars(window), paths=paths, spread=5.0))
    return windows


def test_a_model_that_is_better_stays_alone():
    assert choose_combination(held_out(0.1), SEASON) is None


@pytest.mark.parametrize(("error", "least", "most"), [(20, 1.0, 1.0), (1.4, 0.2, 0.8)])
def test_the_share_of_the_season_follows_from_the_errors(error, least, most):
    combination = choose_combination(held_out(error), SEASON)
    assert combination is not None
    assert combination.season == SEASON
    assert least <= combination.share <= most
    assert combination.error < 0.9 * combination.model_error


def test_few_windows_choose_no_combination():
    bad = held_out(20)
    assert choose_combination(bad[:FEWEST_WINDOWS], SEASON) is not None
    assert choose_combination(bad[: FEWEST_WINDOWS - 1], SEASON) is None


def test_a_random_walk_repeats_the_last_value():
    rng = np.random.default_rng(2)
    walks = [rng.normal(size=40).cumsum() for _ in range(20)]
    far = [HeldOut(walk, 36, paths=walk[-4:] + 50 * rng.normal(size=(30, 4)), spread=1.0) for walk in walks]
    combination = choose_combination(far, SEASON)
    assert combination is not None and combination.season == 1


def test_paths_are_moved_and_keep_their_spread():
    history, paths = np.arange(12.0), np.random.default_rng(1).normal(size=(30, 4))
    moved = Combination(season=4, share=0.25, error=0, model_error=0).apply(history, paths)
    of_series = Combination(season=None, share=0.25, error=0, model_error=0).apply(history, paths, 4)
    np.testing.assert_array_equal(of_series, moved)
    expected = 0.75 * np.median(paths, 0) + 0.25 * np.arange(8.0, 12.0)
    np.testing.assert_allclose(np.median(moved, 0), expected)
    np.testing.assert_allclose(moved.std(0), paths.std(0))


def test_an_untrained_forecaster_of_waves_repeats_them(request_for, tmp_path):
    hours = np.datetime64("2024-01-01T00:00:00") + np.arange(48) * np.timedelta64(1, "h")
    wave = 100 + 3 * np.sin(2 * np.pi * np.arange(48) / 6)
    rows = [f"{name},{hour},{value}" for name in range(FEWEST_WINDOWS) for hour, value in zip(hours, wave, strict=True)]
    (tmp_path / "waves.csv").write_text("\n".join(["unique_id,ds,y", *rows]), encoding="utf-8")
    request = replace(request_for(tmp_path / "run", 2), data=tmp_path / "waves.csv")
    forecaster = load_forecaster(run_training(ForecastTraining(request), Reporter()).run.directory, dtype="float32")
    assert forecaster.combination is not None
    assert (forecaster.combination.season, forecaster.combination.share) == (24, 1.0)
    (paths,) = forecaster.sample_paths([wave], 4, 9)
    np.testing.assert_allclose(np.median(paths, 0), seasonal_naive(wave, 24, 4))
    (alone,) = replace(forecaster, calibration=None).sample_paths([wave], 4, 9)
    assert np.abs(np.median(alone, 0) - np.median(paths, 0)).max() > 0.1


def test_two_held_out_windows_choose_none_and_the_training_reports_that(request_for, tmp_path, caplog):
    caplog.set_level("INFO", "foretell")
    run = run_training(ForecastTraining(request_for(tmp_path / "run", 2)), Reporter()).run
    assert load_forecaster(run.directory).combination is None
    assert "the model's alone: a blend takes 8 held-out windows or more" in caplog.text


def test_a_run_without_combination_has_the_models_forecasts(request_for, tmp_path):
    run = run_training(
        ForecastTraining(request_for(tmp_path / "alone", 2, overrides={"series": {"combine": False}})), Reporter()
    ).run
    forecaster = load_forecaster(run.directory)
    assert forecaster.calibration is not None
    assert forecaster.combination is None


@pytest.mark.parametrize(
    ("season", "words"),
    [(1, "the last value repeated"), (52, "the last 52 values repeated"), (None, "the last season repeated")],
)
def test_a_combination_is_described(season, words):
    assert Combination(season=season, share=0.3, error=0, model_error=0).describe() == f"70% the model's, 30% {words}"

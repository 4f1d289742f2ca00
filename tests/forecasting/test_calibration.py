"""Calibrated intervals: their coverage, every level, and their place in a saved model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from foretell.errors import ConfigError
from foretell.forecasting.calibration import (
    INTERVALS,
    LEVELS,
    Calibration,
    HeldOut,
    calibrate,
    calibrate_in,
    interval_of,
    load_calibration,
    recent_change,
    scores_of,
)
from foretell.forecasting.forecaster import Forecast, load_forecaster
from foretell.forecasting.series import Series, numbered


def made(windows: int, seed: int, too_wide: float = 1.0) -> list[HeldOut]:
    """Windows of a random walk, and paths that are wider than it by a factor."""
    rng = np.random.default_rng(seed)
    actual = rng.normal(size=(windows, 12)).cumsum(1)
    paths = too_wide * rng.normal(size=(windows, 60, 12)).cumsum(2)
    return [
        HeldOut(np.append(0, values), 1, paths=each, spread=1.0) for values, each in zip(actual, paths, strict=True)
    ]


@pytest.mark.parametrize("too_wide", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("level", [50, 80, 95])
def test_intervals_of_new_windows_contain_their_level(too_wide, level):
    calibration = calibrate(made(300, 1, too_wide))
    inside = []
    for each in made(300, 2, too_wide):
        low, high = calibration.interval(each.history, each.paths, level, each.spread)
        inside.append((each.actual >= low) & (each.actual <= high))
    assert 100 * np.mean(inside) == pytest.approx(level, abs=3)
    if too_wide != 1:  # so the test can fail: the paths' own intervals do not
        bounds = [(each.actual, *interval_of(each.paths, level)) for each in made(300, 2, too_wide)]
        own = 100 * np.mean([(actual >= low) & (actual <= high) for actual, low, high in bounds])
        assert abs(own - level) > 3


def test_intervals_of_any_levels_do_not_cross():
    calibration = calibrate(made(3, 1))
    (window,) = made(1, 2)
    bounds = [calibration.interval(window.history, window.paths, level, 1.0) for level in (0.5, 50, 80, 80.5, 95, 99.9)]
    lows, highs = np.array([low for low, _ in bounds]), np.array([high for _, high in bounds])
    assert (np.diff(lows, axis=0) <= 0).all()
    assert (np.diff(highs, axis=0) >= 0).all()


def test_a_level_beyond_what_the_scores_can_show_takes_the_largest():
    paths = np.arange(-4.0, 5.0)[:, None]  # half-widths of 4, so a score of 3 / 4
    one = HeldOut(np.array([0.0, 3.0]), 1, paths=paths, spread=1.0)
    calibration = calibrate([one])
    assert calibration.scores[1:] == (0.75,) * (len(LEVELS) - 1)


def test_missing_values_and_paths_without_width_have_finite_scores():
    constant = HeldOut(np.array([0, np.nan, 2.0, 2.5]), 1, paths=np.full((5, 3), 2.0), spread=10.0)
    assert scores_of(constant).tolist() == [0, pytest.approx(0.5 / 0.1)]


def turbulent(windows: int, seed: int) -> list[HeldOut]:
    """Windows of a random walk whose steps are ten times as large in every other window, and paths that ignore it."""
    rng = np.random.default_rng(seed)
    held_out = []
    for index in range(windows):
        walk = ((10 if index % 2 else 1) * rng.normal(size=130)).cumsum()
        paths = walk[119] + rng.normal(size=(60, 10)).cumsum(1)
        held_out.append(HeldOut(walk, 120, paths=paths, spread=1.0))
    return held_out


def test_intervals_are_in_units_of_recent_changes_where_these_tell_more_than_the_paths():
    calibration = calibrate(turbulent(100, 1))
    assert calibration.unit == "changes"
    own = calibrate_in("paths", turbulent(100, 1), None, None)
    new = turbulent(300, 2)
    assert calibration.loss(new) < 0.8 * own.loss(new)
    for half in (new[::2], new[1::2]):
        bounds = [(each, *calibration.interval(each.history, each.paths, 80, 1.0)) for each in half]
        inside = [(each.actual >= low) & (each.actual <= high) for each, low, high in bounds]
        assert 100 * np.mean(inside) == pytest.approx(80, abs=4)
    assert calibrate(made(40, 1)).unit == "paths"
    assert calibrate(turbulent(6, 1)).unit == "paths", "too few windows choose nothing"
    assert calibrate(made(40, 1), prior=calibration).scores == calibrate(made(40, 1)).scores, "of another unit"


def test_recent_changes_count_the_last_one_most_and_leave_missing_values_out():
    assert recent_change(np.array([0.0, 3.0, np.nan, 5.0, 1.0])) == pytest.approx(
        np.sqrt((4**2 + 0.94**3 * 3**2) / (1 + 0.94**3))
    )
    assert recent_change(np.zeros(1)) == 0


def test_training_calibrates_the_best_checkpoint(forecaster, run_directory, session):
    directory = session.run.best().directory
    assert forecaster.calibration == load_calibration(directory)
    assert forecaster.calibration is not None and forecaster.calibration.windows == len(session.task.held_out)
    session.run.best().verify()
    assert load_forecaster(run_directory, verify=True).calibration == forecaster.calibration


def test_calibrated_intervals_keep_the_minimum(forecaster):
    wide = Calibration(scores=tuple(LEVELS), windows=1)
    series = Series("a", np.abs(np.sin(np.arange(20.0))), numbered())
    paths = np.abs(np.random.default_rng(1).normal(size=(30, 4)))
    bounded = Forecast(series, paths, replace(forecaster, calibration=wide)).interval(80)
    free = Forecast(series, paths, replace(forecaster, calibration=wide, minimum=-5.0)).interval(80)
    assert bounded[0].min() == 0
    assert free[0].min() == -5


def test_a_model_without_calibration_has_the_intervals_of_its_paths(forecaster):
    paths = np.random.default_rng(1).normal(size=(30, 4))
    series = Series("a", np.sin(np.arange(20.0)), numbered())
    plain = Forecast(series, paths, replace(forecaster, calibration=None)).interval(80)
    np.testing.assert_array_equal(plain, interval_of(paths, 80))


@pytest.mark.parametrize("scores", [[0.0] * 3, [1.0, *[0.0] * 100], [-1.0] * 101])
def test_a_damaged_file_is_refused(scores, tmp_path):
    (tmp_path / INTERVALS).write_text(json.dumps({"scores": scores, "windows": 1}), encoding="utf-8")
    with pytest.raises(ConfigError, match="scores"):
        load_calibration(tmp_path)

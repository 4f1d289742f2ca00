"""Forecasting: sampled paths that do not depend on company, batch or cache, of any horizon."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from foretell.errors import CheckpointError, DataError, UsageError
from foretell.forecasting.forecaster import FEWEST_EQUAL, Forecast, forecast, load_forecaster
from foretell.forecasting.series import Series, numbered, value_text
from foretell.generation.batch_generation import result_of
from foretell.model.cache import FreshKVView
from foretell.model.quantized_linear import quantized_layers

WAVE = 50 + 7 * np.sin(np.arange(40))


def test_paths_do_not_depend_on_what_is_sampled_with_them(forecaster, monkeypatch):
    histories = [WAVE, WAVE[:3], 1e6 * WAVE]
    together = forecaster.sample_paths(histories, 5, 4)
    monkeypatch.setattr("foretell.forecasting.forecaster.SERIES_AT_ONCE", 1)
    for history, paths in zip(histories, together, strict=True):
        np.testing.assert_array_equal(forecaster.sample_paths([history], 5, 4)[0], paths)


def test_paths_of_different_series_are_independent(forecaster):
    rng = np.random.default_rng(1)
    histories = [rng.normal(size=20).cumsum() for _ in range(12)] + [WAVE, WAVE]
    ends = np.array([paths[:, -1] for paths in forecaster.sample_paths(histories, 3, 60)])  # (series, samples)
    ranks = ends.argsort(1).argsort(1)
    correlations = np.corrcoef(ranks)[np.triu_indices(len(histories), 1)]
    # the mean of 91 correlations of 60 independent pairs has a standard error of 0.014; with shared draws it is 0.5
    assert abs(correlations.mean()) < 0.06
    assert correlations[-1] < 0.5  # also between two equal histories


def test_a_series_that_was_never_negative_stays_so_unless_asked(forecaster):
    history = np.abs(np.sin(np.arange(20.0)))
    least = [
        replace(forecaster, minimum=minimum).sample_paths([history, history - 0.1], 4, 20)
        for minimum in (None, -math.inf, 0.25)
    ]
    (bounded, free), unbounded, raised = least
    assert bounded.min() == 0 > unbounded[0].min()
    np.testing.assert_array_equal(bounded, np.maximum(unbounded[0], 0))
    np.testing.assert_array_equal(free, unbounded[1])
    assert min(each.min() for each in raised) == 0.25


def test_a_path_of_a_few_samples_is_one_of_many(forecaster):
    alone = replace(forecaster, calibration=None)  # a combination moves the median of the paths
    few, many = (alone.sample_paths([WAVE], 5, samples)[0] for samples in (2, 6))
    np.testing.assert_array_equal(few, many[:2])
    assert not np.array_equal(few, alone.sample_paths([WAVE], 5, 2, seed=2)[0])


def test_the_first_value_follows_the_distribution_of_an_uncached_pass(forecaster):
    prompt = forecaster.prompt(WAVE, 20)
    ids = torch.tensor([prompt.ids])
    with torch.no_grad():
        logits = forecaster.decoder(ids, FreshKVView(ids))[0, -1, : forecaster.codec.config.bins]
    values = forecaster.codec.decode(np.arange(forecaster.codec.config.bins), prompt.scale)
    expected = float(logits.softmax(-1).double() @ torch.from_numpy(values))
    spread = 3 * prompt.scale.spread / np.sqrt(400)
    paths = forecaster.sample_paths([WAVE], 1, 400, context=20)[0]
    assert paths.mean() == pytest.approx(expected, abs=3 * spread)


def test_the_forecast_of_a_stretched_series_is_the_stretched_forecast(forecaster):
    prompts = [forecaster.prompt(history, 20) for history in (WAVE, -3 + 8 * WAVE)]
    plain, stretched = result_of(forecaster.continue_prompts(prompts, 4, 3, seed=1))
    np.testing.assert_allclose(stretched, -3 + 8 * plain, rtol=1e-9)


@pytest.mark.parametrize("horizon", [1, 16, 17, 70])
def test_any_horizon_can_be_forecast(forecaster, horizon):
    assert forecaster.rolls(horizon) == (horizon > 17)
    (paths,) = forecaster.sample_paths([WAVE], horizon, 2)
    assert paths.shape == (2, horizon)
    assert np.isfinite(paths).all()  # a missing value is never sampled


def test_a_rolling_forecast_begins_like_one_that_fits(forecaster):
    short, long = (forecaster.sample_paths([WAVE], horizon, 2, context=16)[0] for horizon in (16, 40))
    np.testing.assert_array_equal(short, long[:, :16])


HISTORIES = {
    "constant": np.full(FEWEST_EQUAL - 1, -4.0),
    "one value": np.array([3.0]),
    "missing values": np.array([1.0, np.nan, 2.0, np.nan]),
    "the smallest": np.array([5e-324, 0.0, 5e-324]),
    "the smallest, constant": np.array([5e-324, 5e-324]),
    "negative and huge": np.array([-1e150, 1e150, 5e149]),
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_every_history_has_a_finite_forecast(forecaster, history):
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        assert np.isfinite(forecaster.sample_paths([history], 3, 2)[0]).all()


@pytest.mark.parametrize("last", [[], [np.nan]])
def test_a_series_that_never_changed_is_continued_unchanged(forecaster, last):
    equal, fewer = (np.array([-4.0] * count + last) for count in (FEWEST_EQUAL, FEWEST_EQUAL - 1))
    (paths,) = forecaster.sample_paths([equal], 3, 5)
    assert (paths == -4).all()
    (low, high), width = forecaster.interval(equal, paths, 80), 0.01 * forecaster.calibration.scores[80]  # of a value
    np.testing.assert_allclose([low, high], [[-4 - width] * 3, [-4 + width] * 3])
    assert np.ptp(replace(forecaster, calibration=None).interval(equal, paths, 80)) == 0
    assert (forecaster.sample_paths([fewer], 3, 5)[0] != -4).any()
    assert (replace(forecaster, minimum=2.0).sample_paths([equal], 3, 5)[0] == 2).all()


def test_a_quantised_forecaster_is_close_to_the_plain_one(forecaster, run_directory):
    quantised = load_forecaster(run_directory, dtype="float32", quantize="int8")
    one, other = (each.sample_paths([WAVE], 4, 50)[0] for each in (forecaster, quantised))
    assert len(quantized_layers(quantised.decoder)) > 0
    assert np.abs(np.median(one, 0) - np.median(other, 0)).max() < 0.2 * np.abs(WAVE).max()


def test_what_cannot_be_forecast_is_refused(forecaster):
    with pytest.raises(DataError, match="all missing"):
        forecaster.sample_paths([np.append(WAVE, np.full(40, np.nan))], 3, 2)
    with pytest.raises(DataError, match=r"a series: 1e\+308 is beyond 1e\+150, too large to compute with; rescale it"):
        forecaster.sample_paths([np.array([1e308, -1e308, np.nan])], 3, 2)
    with pytest.raises(DataError, match=r"^sales: inf is beyond"):
        Series("sales", np.array([1.0, -np.inf]), numbered())
    with pytest.raises(UsageError, match="horizon must be from 1 to 100,000"):
        forecaster.sample_paths([WAVE], 0, 2)
    with pytest.raises(UsageError, match="a list from read_series"):
        forecast(forecaster, [1.0, 2.0, 3.0])  # pyrefly: ignore
    with pytest.raises(CheckpointError, match="not trained on series"):
        load_forecaster("primer")


def test_a_forecast_has_times_median_and_intervals(forecaster):
    made = Forecast(Series("a", WAVE, numbered()), np.arange(1.0, 100.0)[:, None] * [1.0, 2.0])
    assert made.times == ["41", "42"]
    assert made.mean.tolist() == made.median.tolist() == [50, 100]
    low, high = made.interval(80)
    np.testing.assert_allclose([low, high], [[10, 20], [90, 180]])
    (real,) = forecast(forecaster, [made.series], 4, 3)
    assert real.paths.shape == (3, 4)


@pytest.mark.parametrize(
    ("value", "text"), [(0.012344, "0.01234"), (37_858.4, "37858"), (-1e6, "-1000000"), (3.1e16, "3.1e+16")]
)
def test_a_value_is_shown_without_a_power_of_ten_where_it_is_short(value, text):
    assert value_text(value) == text
    assert value_text(math.nan) == "missing"


def test_a_forecast_displays_its_first_steps(forecaster):
    (shown,) = forecast(forecaster, [Series("a", WAVE, numbered())], horizon=30, samples=20)
    page, text = shown._repr_html_(), str(shown)
    low, _ = shown.interval(80)
    assert "<table" in page
    assert f">{shown.times[23]}<" in page
    assert f">{shown.times[24]}<" not in page
    assert f"{low[0]:.4g}" in text
    assert "6 more steps are left out" in text

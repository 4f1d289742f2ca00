"""The included forecaster: its files, its forecasts without training, and a training that starts from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import foretell
from foretell.errors import ConfigError
from foretell.finding import find_model
from foretell.forecasting.forecaster import forecast, load_forecaster
from foretell.forecasting.metrics import mase, seasonal_naive
from foretell.forecasting.series import Series, Timeline
from foretell.forecasting.train import INCLUDED, ForecastRequest, ForecastTraining, forecaster_start
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter
from foretell.storage.manifest import check_model_files

MONTHS = Timeline("month", 1, 0, "%Y-%m")


def sales(length: int) -> np.ndarray:
    """Monthly values with a trend and a season that no component of the synthetic series was made from."""
    times = np.arange(length)
    noise = np.random.default_rng(7).standard_normal(length)
    return 200 + 2 * times + 30 * np.sin(times * np.pi / 6) ** 3 + 12 * (times % 12 == 11) + 3 * noise


def test_the_files_are_small_and_as_the_manifest_lists_them():
    directory = find_model(INCLUDED)
    check_model_files(directory, in_full=True)
    assert sum(path.stat().st_size for path in directory.iterdir() if path.is_file()) < 4e6


def test_it_beats_seasonal_naive_without_training():
    values = sales(108)
    (made,) = forecast(INCLUDED, [Series("sales", values[:84], MONTHS)], samples=40)
    assert len(made.median) == 21  # a quarter of the series is less than two seasons
    points = (made.median, seasonal_naive(values[:84], 12, 21))
    own, naive = (mase(values[84:105], point, values[:84], 12) for point in points)
    assert own < 0.8 * naive


def test_the_season_matters_to_it():
    history = sales(84)
    forecaster = load_forecaster(INCLUDED, "cpu")
    with_season, horizon = forecaster.for_series([Series("sales", history, MONTHS)])
    assert (with_season.season, horizon) == (12, 21)
    (seasonal,), (plain,) = (each.sample_paths([history], 12, 20) for each in (with_season, forecaster))
    assert not np.allclose(np.median(seasonal, 0), np.median(plain, 0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sales.csv"
    rows = [f"{1990 + month // 12}-{month % 12 + 1:02},{value:.3f}" for month, value in enumerate(sales(72))]
    path.write_text("\n".join(["Month,Sales", *rows]), encoding="utf-8")
    return path


def trained(file: Path, out: Path, **options):
    training = {"steps": 2, "batch_size": 2, **options.pop("training", {})}
    request = ForecastRequest(data=file, out=out, overrides={"training": training}, **options)
    return run_training(ForecastTraining(request), Reporter())


def test_a_training_starts_from_it_and_keeps_its_weights_if_they_are_the_best(file, tmp_path):
    session = trained(file, tmp_path / "run", training={"learning_rate": 0.5})
    record = session.run.record()
    assert record.start is not None
    assert (record.start.model, record.size) == (INCLUDED, INCLUDED)
    best = session.run.best()
    assert best.step == 0  # a rate of 0.5 destroys the weights
    old, new = (foretell.load(name, "cpu", "float32").weights_digest() for name in (INCLUDED, best.directory))
    assert old == new


def test_random_weights_are_asked_for_or_follow_from_another_shape(file, tmp_path, caplog):
    caplog.set_level("INFO", "foretell")
    asked = trained(file, tmp_path / "a", is_from_scratch=True, size="toy")
    assert asked.run.record().start is None
    assert "does not fit" not in caplog.text
    sized = trained(file, tmp_path / "b", size="toy")
    assert sized.run.record().start is None
    assert f"random weights: {INCLUDED}, the included forecaster, does not fit --size toy" in caplog.text


def test_a_start_refuses_another_shape_and_another_kind_of_model(file, tmp_path):
    start = forecaster_start(INCLUDED)
    with pytest.raises(ConfigError, match="has a fixed shape; leave out size toy"):
        ForecastRequest(data=file, out=tmp_path, start=start, size="toy")
    with pytest.raises(ConfigError, match="leave out codec.bins"):
        ForecastRequest(data=file, out=tmp_path, start=start, overrides={"codec": {"bins": 63}})
    with pytest.raises(ConfigError, match="leave out start_from almanac"):
        ForecastRequest(data=file, out=tmp_path, start=start, is_from_scratch=True)
    with pytest.raises(foretell.CheckpointError, match="primer was not trained on series"):
        forecaster_start("primer")

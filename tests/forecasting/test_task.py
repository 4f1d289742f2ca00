"""The forecasting task, and its training from a file to a saved model."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from foretell.errors import ConfigError, DataError, TrainingError
from foretell.forecasting.codec import scale_of
from foretell.forecasting.config import SIZES
from foretell.forecasting.forecaster import forecast, load_forecaster
from foretell.forecasting.series import Series, Timeline, Window, numbered
from foretell.forecasting.series_file import read_series
from foretell.forecasting.task import CALIBRATION_PATHS, SAMPLING_COST, ForecastTask
from foretell.forecasting.train import ForecastRequest, ForecastTraining
from foretell.loading import load
from foretell.planning.estimate import DeviceMemory, device_memory
from foretell.session.declaration import Machine
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter


def weights(directory) -> dict[str, torch.Tensor]:
    return dict(load(directory, dtype="float32").decoder.named_parameters())


def test_a_run_holds_a_model_with_its_codec_in_the_place_of_a_tokenizer(run_directory):
    (checkpoint,) = (run_directory / "checkpoints").iterdir()
    parts = json.loads((checkpoint / "config.json").read_text())["parts"]
    file_format = parts["codec"].pop("format")
    assert parts["codec"] == {
        "kind": "series_codec",
        "bins": 63,
        "limit": 15.0,
        "linear_range": 1.0,
        "horizon": 4,
        "season": 1,
        "held_out_windows": 1,
    }
    assert (file_format["id_column"], file_format["date_format"]) == ("unique_id", "%Y-%m-%dT%H:%M:%S")
    assert not (checkpoint / "tokenizer.json").exists()
    assert load_forecaster(run_directory).horizon == 4


def test_the_loss_is_reported_for_contexts_of_every_size(session):
    by_context = session.task.loss_by_context(torch.float32)
    assert list(by_context) == [1, 2, 4, 8, 16, 28]
    assert all(0 < loss < 10 for loss in by_context.values())


def test_the_report_takes_the_time_of_the_losses_by_context_and_the_calibration(session, request_for, tmp_path):
    """Six contexts; two windows of four values in 50 paths each; an evaluation reads two windows of 32 values."""
    assert session.task.closing_evaluations == 6 + SAMPLING_COST * 2 * 4 * CALIBRATION_PATHS / (2 * 32)
    request = request_for(tmp_path / "run", steps=1, overrides={"series": {"hold_out": False}})
    assert run_training(ForecastTraining(request), Reporter()).task.closing_evaluations == 0


def test_windows_without_a_known_context_are_not_for_the_calibration():
    values = np.arange(12.0)
    windows = [Window(values, 8, before=values), Window(np.where(values < 8, np.nan, values), 8, before=values)]
    task = cast("ForecastTask", SimpleNamespace(held_out=windows))
    assert ForecastTask.calibration_windows.func(task) == windows[:1]


def test_what_is_held_out_is_said_of_series_of_several_lengths(session, request_for, tmp_path):
    training, task = ForecastTraining(request_for(tmp_path / "run")), session.task
    both = SimpleNamespace(series=[*task.series, task.series[0].until(3)], config=task.config, record=task.record)
    assert training.describe(task)[0].endswith("0 missing, the last 4 of each held out")
    assert training.describe(cast("ForecastTask", both))[0].endswith("0 missing, at most the last 4 of each held out")


def test_samples_show_numbers(session):
    (sample,) = session.task.samples()
    assert sample.prompt.startswith("small: ")
    assert len(sample.continuation.split()) == 5


@pytest.fixture(scope="module")
def mixed_run(tmp_path_factory):
    """The directory of a tiny training on a series of days and one of months, and what its task said."""
    folder = tmp_path_factory.mktemp("mixed")
    days = [f"D,{np.datetime64('2019-01-01') + day},{day % 7}" for day in range(60)]
    months = [f"M,{np.datetime64('2010-01') + month}-01,{month % 12}" for month in range(72)]
    (folder / "mixed.csv").write_text("\n".join(["unique_id,ds,y", *days, *months]) + "\n")
    training = {"steps": 2, "batch_size": 4}
    request = ForecastRequest(
        data=folder / "mixed.csv", out=folder / "run", size="toy", overrides={"training": training}
    )
    return run_training(ForecastTraining(request), Reporter())


def test_each_series_is_trained_by_the_season_of_its_interval(mixed_run):
    task = mixed_run.task
    assert task.source.seasons == task.cycles == [7, 12]
    assert {window.season for window in task.held_out} == {7, 12}
    assert (task.config.series.cycle, task.config.series.horizon) == (None, 14)
    assert (
        "season      by interval: 7 for steps of 1 day, 12 for steps of 1 month, since series have several "
        + ("intervals")
        in task.record.reasons
    )
    assert any(line.startswith("horizon     14 for all") for line in task.record.reasons)
    assert task.record.task["season"] is None


def test_values_without_times_have_the_season_of_the_training(tmp_path):
    days = [f"{np.datetime64('2019-01-01') + day},{day % 7}" for day in range(60)]
    (tmp_path / "days.csv").write_text("\n".join(["ds,y", *days]) + "\n")
    options = {"size": "toy", "overrides": {"training": {"steps": 1, "batch_size": 4}}}
    request = ForecastRequest(data=tmp_path / "days.csv", out=tmp_path / "run", **options)
    (series,) = run_training(ForecastTraining(request), Reporter()).task.series
    forecaster = load_forecaster(tmp_path / "run")
    assert (forecaster.season, forecaster.untimed_season) == (None, 7)
    untimed = Series("a", series.values[:20], numbered())
    assert forecaster.for_series([untimed])[0].season == 7
    assert forecaster.for_series([replace(series, timeline=Timeline("month", 1, 0))])[0].season == 12
    assert forecaster.prompt(series.values, 40) == replace(forecaster, season=7).prompt(series.values, 40)


def test_a_forecast_has_the_season_of_what_is_forecast_or_the_one_given(mixed_run):
    forecaster, series = load_forecaster(mixed_run.run.directory), mixed_run.task.series
    made = forecast(forecaster, series, 3, 5)
    assert [each.forecaster and each.forecaster.season for each in made] == [7, 12]
    assert [forecaster.for_series([each])[0].season for each in series] == [7, 12]
    fixed = replace(forecaster, season=24)
    assert [fixed.for_series(series, season)[0].season for season in (None, 5)] == [24, 5]
    assert [each.forecaster and each.forecaster.season for each in forecast(fixed, series, 3, 5)] == [24, 24]


def test_held_out_values_are_not_learned_from(session):
    lengths = [len(values) for values in session.task.source.series]
    assert lengths == [len(each) - 4 for each in session.task.series]


def test_all_values_can_be_learned_from(request_for, tmp_path):
    request = request_for(tmp_path / "run", steps=1, overrides={"series": {"hold_out": False}})
    trained = run_training(ForecastTraining(request), Reporter())
    assert sum(map(len, trained.task.source.series)) == sum(len(each) for each in trained.task.series)
    assert trained.run.best().training()["validation_loss"] is None


def test_training_with_scales_that_look_ahead_is_refused(request_for, tmp_path, monkeypatch):
    monkeypatch.setattr("foretell.forecasting.windows.scale_before", lambda window: scale_of(window.values))
    with pytest.raises(TrainingError, match="looks ahead"):
        run_training(ForecastTraining(request_for(tmp_path / "run")), Reporter())
    assert not (tmp_path / "run").exists()


WRONG = {
    "size": ({"size": "large"}, "size 'large'"),
    "section": ({"overrides": {"tokenizer": {}}}, "tokenizer"),
    "horizon": ({"horizon": 0}, "horizon"),
    "key": ({"overrides": {"codec": {"bin": 3}}}, "bin"),
    "vocabulary": ({"overrides": {"model": {"vocab_size": 9}}}, "codec.bins"),
    "long horizon": ({"horizon": 40, "overrides": {"model": {"context_length": 8}}}, "does not fit the context"),
}


@pytest.mark.parametrize(("changes", "words"), WRONG.values(), ids=WRONG)
def test_wrong_settings_are_refused_and_leave_nothing(changes, words, series_file, tmp_path):
    with pytest.raises(ConfigError, match=words):
        run_training(ForecastTraining(ForecastRequest(data=series_file, out=tmp_path / "run", **changes)), Reporter())
    assert not (tmp_path / "run").exists()


def test_too_short_series_are_refused(series_file, tmp_path):
    with pytest.raises(DataError, match="too few to hold out 59"):
        run_training(ForecastTraining(ForecastRequest(data=series_file, out=tmp_path / "run", horizon=59)), Reporter())


@pytest.fixture(scope="module")
def long_series(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "long.csv"
    path.write_text("\n".join(f"{index % 24 + index % 7}" for index in range(300_000)), encoding="utf-8")
    return path, read_series(path)


@pytest.mark.parametrize(("seconds", "size"), [(1.0, "toy"), (0.1, "tiny"), (1e-6, "small")])
def test_an_open_size_follows_from_the_measured_time(seconds, size, long_series, tmp_path, monkeypatch):
    def step(task, *_):
        return seconds * sum(weight.numel() for weight in task.model.parameters()) / 231_232  # of tiny

    monkeypatch.setattr("foretell.session.declaration.seconds_per_step", step)
    path, series = long_series
    training = ForecastTraining(ForecastRequest(data=path, out=tmp_path / "run", minutes=1.0))
    machine = Machine(torch.device("cpu"), torch.float32, device_memory(torch.device("cpu")))
    choice = training.choose(series, machine)
    assert choice.size == size
    assert f"size        {size}, " in choice.reasons[1]
    assert choice.config.model.width == SIZES[size]["width"]


def test_a_size_that_does_not_fit_the_memory_is_left_out_with_a_message(long_series, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("foretell.session.declaration.seconds_per_step", lambda *_: 1e-6)
    caplog.set_level(logging.INFO, logger="foretell")
    path, series = long_series
    training = ForecastTraining(ForecastRequest(data=path, out=tmp_path / "run", minutes=1.0))
    machine = Machine(torch.device("cpu"), torch.float32, DeviceMemory("cpu", 2**26))
    assert training.choose(series, machine).size == "tiny"
    (message,) = [each for each in caplog.messages if each.startswith("skipped     the size small: ")]
    assert message.endswith(", and cpu memory is 67.1 MB") and "need" in message


def test_a_given_time_does_not_train_on_a_short_series_longer_than_it_teaches(
    series_file, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("foretell.forecasting.train.MOST_PASSES", 1)
    monkeypatch.setattr("foretell.forecasting.train.FEWEST_STEPS", 3)
    monkeypatch.setattr("foretell.session.declaration.seconds_per_step", lambda *_: 0.01)
    caplog.set_level(logging.INFO, logger="foretell")
    request = ForecastRequest(data=series_file, out=tmp_path / "run", size="toy", horizon=4, minutes=2.0)
    trained = run_training(ForecastTraining(request), Reporter())
    assert trained.progress.step == trained.training.steps == 3
    assert (trained.progress.learning_rate or 1.0) < 0.4 * trained.training.learning_rate
    assert "steps       3: the time would allow 12,000, but more would mostly memorise the data" in caplog.text
    assert "ended       after 3 steps, the most for this data; 1" in caplog.text
    caplog.clear()
    again = run_training(ForecastTraining(request), Reporter(), resume=True)
    assert again.progress.step == 3
    assert f"finished    {tmp_path / 'run'} has all its 3 steps" in caplog.text
    assert "ended" not in caplog.text

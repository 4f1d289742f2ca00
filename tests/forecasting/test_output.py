"""Forecasts as tables, JSON, pictures and pages."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from foretell.errors import OutputError, UsageError
from foretell.forecasting.forecaster import Forecast, forecast
from foretell.forecasting.output import (
    check_outputs,
    choose_ticks,
    draw_forecasts,
    forecast_json,
    path_rows,
    table_rows,
    write_forecast_page,
    write_table,
    written_like,
)
from foretell.forecasting.series import Series, Timeline, numbered
from foretell.forecasting.series_file import read_series
from foretell.forecasting.series_layout import SeriesFormat
from foretell.typesetting.numbers import format_significant

FORECAST = Forecast(Series("a,b", np.array([1.0, np.nan, 3.0]), numbered()), np.array([[1.5, -2e6], [2.5, 4e6]]))


def test_the_table_has_a_row_per_value_and_survives_csv(tmp_path):
    write_table(tmp_path / "x.csv", table_rows([FORECAST], (80.0, 99.9)))
    header, first, second = csv.reader((tmp_path / "x.csv").read_text().splitlines())
    assert header == ["unique_id", "ds", "mean", "median", "lo-80", "hi-80", "lo-99.9", "hi-99.9"]
    assert first[:6] == ["a,b", "4", "2", "2", "1.5", "2.5"]
    assert second[:4] == ["a,b", "5", "1000000", "1000000"]


@pytest.mark.parametrize(("decimal", "mark"), [(",", ","), (None, ","), (".", ".")])
def test_the_table_of_a_file_with_semicolons_has_semicolons(decimal, mark):
    rows = table_rows([FORECAST], (80.0, 99.9))
    header, first, _ = written_like(rows, SeriesFormat(separator=";", decimal=decimal)).splitlines()
    assert header.endswith(";lo-99.9;hi-99.9")
    assert first.startswith(f"a,b;4;2;2;1{mark}5;2{mark}5;")


@pytest.mark.parametrize(
    ("value", "written"),
    [(10734761860.4, "10734761860"), (0.0, "0"), (-0.1234567890123, "-0.123456789"), (1e-9, "1e-09"), (2e20, "2e+20")],
)
def test_numbers_of_usual_size_have_no_exponent(value, written):
    assert format_significant(value, 10) == written


def test_paths_and_json_hold_the_same_numbers():
    assert list(path_rows([FORECAST]))[1] == ["a,b", "4", "1.5", "2.5"]
    made = forecast_json(FORECAST, (80.0,))
    assert made["ds"] == ["4", "5"]
    assert made["intervals"]["80"][0][0] == 1.5


def test_outputs_are_checked_before_any_work(tmp_path):
    (tmp_path / "text.csv").write_text("my own notes")
    with pytest.raises(OutputError, match="it exists"):
        check_outputs(tmp_path / "text.csv", overwrite=False)
    with pytest.raises(UsageError, match="same name"):
        check_outputs(tmp_path / "a", tmp_path / "a", overwrite=False)
    with pytest.raises(UsageError, match="the table is CSV"):
        check_outputs(tmp_path / "x.parquet", overwrite=False)
    check_outputs(None, overwrite=False)


def test_a_picture_has_a_panel_per_series_and_says_what_is_left_out(tmp_path, pictures):
    lines = draw_forecasts(tmp_path / "x.png", [FORECAST] * 8, (80.0, 95.0))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert "shows 6 of 8 series" in lines[0]
    assert draw_forecasts(tmp_path / "x.png", [FORECAST], (80.0,)) == []  # over its own picture


@pytest.mark.parametrize(
    ("first", "step", "count", "expected"),
    [
        (2131, 1, 50, [2140, 2150, 2160, 2170, 2180]),
        (1, 1, 5, [1, 2, 3, 4, 5]),
        (0, 250, 41, list(range(0, 10001, 2000))),
    ],
)
def test_ticks_are_round_numbers(first, step, count, expected):
    timeline = Timeline("number", step, first)
    assert [int(timeline.text(tick)) for tick in choose_ticks(0, count - 1, timeline)] == expected


def test_the_page_names_times_and_values_of_its_tokens(forecaster, series_file, tmp_path):
    (made,) = forecast(forecaster, read_series(series_file)[:1], 4, 2)
    report = write_forecast_page(forecaster, made, tmp_path / "x.html")
    content = (tmp_path / "x.html").read_text()
    assert report.tokens == 32
    assert "2024-01-02T23:00:00 97." in content  # the last value of the history
    assert "2024-01-03T03:00:00 " in content  # the last of the forecast

"""Rolling origins: what is forecast from where, and how it is scored next to the seasonal naive forecast."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from foretell.errors import DataError, UsageError
from foretell.forecasting.rolling import (
    ForecastReport,
    RollingEvaluation,
    Score,
    coverage_by_level,
    evaluate_origins,
    given_origins,
    rolling_origins,
    score,
    score_others,
    series_rows,
)
from foretell.forecasting.series import Series, Window, find_timeline, numbered
from foretell.typesetting.document import Table

VALUES = np.array([1.0, 5, 2, 7, 3, 9, 4, 12])
WEEKDAYS = [f"2024-05-{day:02}" for day in (*range(1, 4), *range(6, 11), *range(13, 17))]
evaluate = partial(evaluate_origins, levels=(50.0,), samples=8)


def one(values, name: str = "a") -> Series:
    return Series(name, np.array(values, dtype=float), numbered())


def test_origins_go_back_from_the_end_by_the_stride():
    origins = rolling_origins([one(VALUES), one(VALUES[:3], "b")], horizon=2, stride=3, windows=3, seasons=[2, 2])
    assert [(len(each.history), each.actual.tolist()) for each in origins] == [(6, [4, 12]), (3, [7, 3]), (1, [5, 2])]


def test_an_origin_needs_values_on_both_sides():
    with pytest.raises(DataError, match="longer than the horizon"):
        rolling_origins([one(VALUES)], 8, 1, 1, [2])
    with pytest.raises(UsageError, match="at least 1"):
        rolling_origins([one(VALUES)], 2, 0, 1, [2])


def test_what_follows_can_be_given_in_another_file():
    (origin,) = given_origins([one(VALUES)], [one([6, 15])], [2])
    assert (origin.history.tolist(), origin.actual.tolist()) == (VALUES.tolist(), [6, 15])
    with pytest.raises(DataError, match="series 'b' is in one"):
        given_origins([one(VALUES)], [one([6], "a"), one([6], "b")], [2])


@pytest.mark.parametrize(
    ("times", "following", "values"),
    [
        (["2024-05-30", "2024-05-31"], ["2024-06-02", "2024-06-03"], [np.nan, 1, 2]),
        (WEEKDAYS, ["2024-05-17", "2024-05-20"], [1, 2]),  # Friday and Monday; alone, they are three days apart
        (
            ["2024-03-30T00:00+0100", "2024-03-31T00:00+0100"],
            ["2024-04-01T00:00+0200", "2024-04-02T00:00+0200"],
            [1, 2],
        ),
        (["2001", "2002"], ["2004", "2005"], [np.nan, 1, 2]),
        (["2001", "2002"], ["1", "2"], [1, 2]),
        (["2024-05-30", "2024-05-31"], ["2024-05-31", "2024-06-01"], "the times 2024-05-31, ... do not continue it"),
    ],
)  # fmt: skip
def test_what_follows_is_placed_by_its_times(times, following, values):
    history, after = (
        Series("a", np.arange(1.0, 1 + len(each)), find_timeline(each, "a")[0]) for each in (times, following)
    )
    if isinstance(values, str):
        with pytest.raises(DataError, match=values):
            history.values_after(after)
    else:
        np.testing.assert_array_equal(history.values_after(after), values)


def test_a_score_is_that_of_the_median(forecaster):
    plain = replace(forecaster, calibration=None)
    origin = Window(np.append(VALUES[:4], [3.0, 9.0]), 4, season=2)  # seasonal error 1.5
    paths = np.array([[1.0, 9.0], [6.0, 9.0], [6.0, 10.0]])
    result = score([origin], [paths])
    assert result.mase == result.mase_median == pytest.approx(1.0)
    assert result.smape == pytest.approx(200 * 3 / 9 / 2)
    assert (result.mae, result.rmse) == (pytest.approx(1.5), pytest.approx(4.5**0.5))  # errors -3 and 0
    assert result.by_step == pytest.approx([2.0, 0.0])
    assert coverage_by_level(plain, [origin], [paths], [50.0]) == {
        "50": 100.0
    }  # quartiles at the ends of three paths: 1 to 6, 9 to 10


def test_the_model_is_scored_next_to_the_naive_forecast(forecaster):
    origins = rolling_origins([one(VALUES), one(np.ones(9), "constant")], 2, 2, 2, [2, 2])
    result = evaluate(forecaster, origins)
    assert result.naive.mase == pytest.approx((2 / 1.5 + 1.5 / 1.5) / 2)  # errors 1, 3 and 1, 2
    assert (result.origins, result.without_mase) == (4, 2)
    assert result.model.mase is not None and result.model.wql is not None
    for context in (1, 3):
        shorter = evaluate(forecaster, origins, context=context)
        assert (shorter.origins, shorter.naive) == (4, result.naive)


def test_each_series_is_measured_and_forecast_by_its_own_season(forecaster):
    forecaster, wave = replace(forecaster, season=None), np.tile(VALUES, 4)
    origins = rolling_origins([one(wave), one(wave, "b")], 2, 2, 1, [8, 2])
    result = evaluate(forecaster, origins)
    for origin in origins:
        alone = evaluate(replace(forecaster, season=origin.season), [origin])
        model, naive = result.by_series[origin.name]
        assert naive == alone.by_series[origin.name][1]
        if origin.name == "a":  # the paths of the same history again have other draws
            assert model == alone.by_series["a"][0]
    assert result.by_series["a"][1].mae == 0
    assert (result.by_series["b"][1].mae or 0) > 1


def test_series_are_scored_alone_the_worst_first(forecaster):
    origins = rolling_origins([one(VALUES), one(VALUES * 100, "b"), one(np.ones(9), "constant")], 2, 2, 2, [2, 2, 2])
    result = evaluate(forecaster, origins)
    assert set(result.by_series) == {"a", "b", "constant"}
    assert list(result.by_series)[-1] == "constant"  # it has no seasonal error
    errors = [model.mase or 0.0 for model, _ in result.by_series.values()][:2]
    assert errors == sorted(errors, reverse=True)
    _, naive = result.by_series["b"]
    assert naive.mae == pytest.approx(100 * (1 + 3 + 1 + 2) / 4)
    header, *rows = series_rows(result)
    assert header[0] == "unique_id"
    assert [row[0] for row in rows] == list(result.by_series)
    assert {len(row) for row in rows} == {len(header)}
    report = ForecastReport(result, {}, 2, "given", 2, "4 origins", per_series=True)
    assert list(report.to_json()["by_series"]) == list(result.by_series)
    table = report.document().parts[-1]
    assert isinstance(table, Table)
    assert table.header[-1] == "seasonal naive MASE"
    assert [row[0] for row in table.rows] == list(result.by_series)


def test_the_last_value_and_auto_ets_are_scored_where_they_differ_and_exist(monkeypatch):
    series = [one(np.tile([1.0, 3.0, 2.0], 8))]
    origins, plain = (rolling_origins(series, 3, 3, 1, [season]) for season in (3, 1))
    monkeypatch.setattr("foretell.forecasting.metrics.has_peer", lambda: False)
    assert set(score_others(origins)) == {"naive"}
    assert score_others(plain) == {}
    monkeypatch.setattr("foretell.forecasting.metrics.has_peer", lambda: True)
    monkeypatch.setattr("foretell.forecasting.metrics.auto_ets", lambda history, season, horizon: history[-horizon:])
    scores = score_others(origins)
    assert scores["naive"].mae == pytest.approx((1 + 1 + 0) / 3)  # 2 each time
    assert scores["AutoETS"].mae == 0


@pytest.mark.parametrize(
    ("model", "behind"),
    [([1, 1, 1], None), ([3, 3, 3], 1), ([1, 3, 3], 2), ([3, 1, 3], 3), ([3, 3, 1], None), ([], None)],
)
def test_it_is_said_from_where_on_the_naive_forecast_is_better(model, behind):
    def with_steps(steps):
        return Score(None, None, None, None, None, None, None, steps)

    assert RollingEvaluation(with_steps(model), with_steps([2] * len(model)), 1, 0).behind_from == behind

"""Series in DataFrames of pandas and polars, which are read without importing either package."""

from __future__ import annotations

import importlib
import json
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import foretell
from foretell.errors import DataError, UsageError
from foretell.forecasting.series_file import read_series

START = datetime(2024, 1, 1)
TIMES = [START + timedelta(days=day) for day in range(24)]
LONG = {
    "shop": ["a", "b"] * 24,
    "day": [time for time in TIMES for _ in range(2)],
    "price": [1.5 * i for i in range(48)],
}


class Column:
    """A column with the interface that both packages have."""

    def __init__(self, values: list[Any]):
        self.values = values

    def to_list(self) -> list[Any]:
        return self.values


class PlainFrame:
    """A frame with the interface that both packages have."""

    def __init__(self, columns: dict[Any, list[Any]]):
        self.data = columns

    @property
    def columns(self) -> list[Any]:
        return list(self.data)

    def __getitem__(self, name: Any) -> Column:
        return Column(self.data[name])


def make_frame(kind: str, columns: dict[Any, list[Any]]) -> Any:
    if kind == "plain":
        return PlainFrame(columns)
    return pytest.importorskip(kind, reason=f"{kind} is not installed").DataFrame(columns)


@pytest.mark.parametrize("kind", ["plain", "pandas", "polars"])
def test_a_frame_is_read_as_a_table(kind):
    first, second = read_series(make_frame(kind, LONG))
    assert (first.unique_id, first.timeline.text(24)) == ("a", "2024-01-25")
    assert second.values[:2].tolist() == [1.5, 4.5]
    (numbered,) = read_series(make_frame(kind, {"0": [1.0, None, 3.0]}))
    np.testing.assert_array_equal(numbered.values, [1, np.nan, 3])


@pytest.mark.parametrize("kind", ["plain", "pandas", "polars"])
def test_times_of_a_frame_have_their_offsets(kind):
    times = [time.replace(tzinfo=UTC) for time in TIMES[:3]]
    (series,) = read_series(make_frame(kind, {"time": times, "y": [1, 2, 3]}))
    assert series.timeline.text(3) == "2024-01-04 00:00:00+00:00"


NEW_YORK = ZoneInfo("America/New_York")  # clocks are set back on 2025-11-02 and forward on 2026-03-08
ZONES = {  # the first time, the step, the number of values, and the times that follow
    "days": ("2025-10-20", 1440, 13, ["2025-11-02 00:00:00-04:00", "2025-11-03 00:00:00-05:00"]),
    "weeks": ("2025-10-05", 7 * 1440, 5, ["2025-11-09 00:00:00-05:00"]),
    "days across a change": ("2025-10-31 08:30", 1440, 4, ["2025-11-04 08:30:00-05:00"]),
    "a clock that is skipped": (
        "2026-03-05 02:30",
        1440,
        3,
        ["2026-03-08 03:30:00-04:00", "2026-03-09 02:30:00-04:00"],
    ),
    "a clock that repeats": ("2025-10-29 01:30", 1440, 4, ["2025-11-02 01:30:00-04:00", "2025-11-03 01:30:00-05:00"]),
    "hours": ("2025-11-01 22:00", 60, 3, [f"2025-11-02 0{t}:00:00-0{o}:00" for t, o in ((1, 4), (1, 5), (2, 5))]),
    "half days": ("2025-10-31 12:00", 720, 3, ["2025-11-02 00:00:00-04:00", "2025-11-02 11:00:00-05:00"]),
}


def zone_times(first: str, minutes: int, count: int, zone: tzinfo) -> list[datetime]:
    """Equally spaced times in a zone; days and weeks follow its clocks."""
    clock, step = datetime.fromisoformat(first).replace(tzinfo=zone), timedelta(minutes=minutes)
    if minutes % 1440 == 0:
        return [clock + step * index for index in range(count)]
    return [(clock.astimezone(UTC) + step * index).astimezone(zone) for index in range(count)]


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    importlib.import_module("pyarrow.parquet").write_table(arrow.table(columns), path)
    return path


@pytest.mark.parametrize("kind", ["plain", "dateutil", "pandas", "polars", "parquet"])
@pytest.mark.parametrize(("first", "minutes", "count", "following"), ZONES.values(), ids=ZONES)
def test_times_in_a_zone_follow_its_changes_of_clocks(kind, first, minutes, count, following, tmp_path):
    zone = pytest.importorskip("dateutil.tz").gettz(NEW_YORK.key) if kind == "dateutil" else NEW_YORK
    columns = {"time": zone_times(first, minutes, count, zone), "y": list(range(count))}
    source = write_parquet(tmp_path / "x.parquet", columns) if kind == "parquet" else None
    (series,) = read_series(source or make_frame("plain" if kind == "dateutil" else kind, columns))
    assert series.timeline.text(0) == str(columns["time"][0])
    assert [series.timeline.text(count + step) for step in range(len(following))] == following


@pytest.mark.parametrize("start", ["2025-07-01", "2025-12-01"])
def test_months_in_a_zone_begin_at_midnight_and_are_joined_by_instant(start):
    zone = ZoneInfo("Europe/Berlin")
    months = [datetime(2025 + month // 12, month % 12 + 1, 1, tzinfo=zone) for month in range(24)]
    split = months.index(datetime.fromisoformat(start).replace(tzinfo=zone))
    known, after = months[:split], months[split:]
    (series,) = read_series(make_frame("plain", {"time": known, "y": list(range(len(known)))}))
    assert [series.timeline.text(split + step) for step in range(len(after))] == [str(time) for time in after]
    (other,) = read_series(make_frame("plain", {"time": after, "y": list(range(len(after)))}))
    assert series.values_after(other).tolist() == list(range(len(after)))


def test_a_forecast_is_joined_with_its_actual_values_by_instant():
    times = zone_times("2025-10-25", 1440, 20, NEW_YORK)
    known, actual = ({"time": part, "y": list(range(len(part)))} for part in (times[:8], times[8:]))
    forecast = foretell.forecast("almanac", make_frame("plain", known), horizon=12, samples=2)[0]
    assert [datetime.fromisoformat(time).astimezone(UTC) for time in forecast.times] == [
        time.astimezone(UTC) for time in actual["time"]
    ]
    (series,), (after,) = (read_series(make_frame("plain", each)) for each in (known, actual))
    assert series.values_after(after).tolist() == actual["y"]


def test_a_lazy_frame_is_collected():
    class Lazy:
        """A query, whose columns cannot be read."""

        columns = ()

        def __getitem__(self, name: Any) -> Column:
            raise TypeError("LazyFrame is not subscriptable")

        def collect(self) -> PlainFrame:
            return PlainFrame(LONG)

    assert [each.unique_id for each in read_series(Lazy())] == ["a", "b"]


@pytest.mark.parametrize("last", [TIMES[2], "2024-01-03 00:00:00"], ids=["time", "text"])
def test_times_are_dates_where_all_are_midnight(last):
    (hours,) = read_series(make_frame("plain", {"time": [TIMES[0], TIMES[0] + timedelta(hours=12)], "y": [1, 2]}))
    assert hours.timeline.text(2) == "2024-01-02 00:00:00"
    (days,) = read_series(make_frame("plain", {"time": [*TIMES[:2], last], "y": [1, 2, 3]}))
    assert days.timeline.text(3) == ("2024-01-04" if last == TIMES[2] else "2024-01-04 00:00:00")


def test_the_index_of_pandas_has_times():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": [1.0, 2, 3]}, index=pandas.date_range("2024-01-01", periods=3, freq="h"))
    (series,) = read_series(frame)
    assert (series.unique_id, series.timeline.frequency) == ("a", "1 hour")
    assert len(read_series(pandas.DataFrame({"date": TIMES, "y": range(24)})[10:])) == 1


def test_a_frame_that_cannot_be_read_is_one_line():
    with pytest.raises(UsageError, match="not int"):
        read_series(3)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(DataError, match="the frame, row 2: 'x' is not a number"):
        read_series(make_frame("plain", {"ds": [1, 2], "y": [1, "x"]}))


@pytest.mark.parametrize("kind", ["plain", "pandas", "polars"])
def test_a_model_is_trained_on_a_frame_and_forecasts_another(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = make_frame(kind, LONG)
    shape = {"num_layers": 1, "num_heads": 2, "width": 16}
    options: dict[str, Any] = {"size": "toy", "steps": 2, "horizon": 3, "model": shape, "progress": False}
    model = foretell.train(frame, task="forecast", id_column="shop", **options)
    made = foretell.forecast(model, frame, samples=2)
    assert [each.series.unique_id for each in made] == ["a", "b"]
    assert made[0].times == ["2024-01-25", "2024-01-26", "2024-01-27"]
    (other,) = foretell.forecast("runs/frame", make_frame(kind, {"shop": [1, 1], "day": [1, 2], "price": [5, 6]}), 1, 2)
    assert (other.series.unique_id, other.times) == ("1", ["3"])
    foretell.train(frame, "runs/frame", task="forecast", resume=True, **options)
    further: dict[str, Any] = {"start_from": "runs/frame", "steps": 2, "progress": False}
    foretell.train(frame, "runs/further", task="forecast", id_column="shop", **further)
    record = json.loads(Path("runs/further/run.json").read_text("utf-8"))
    assert record["from"]["model"] == "runs/frame"


def test_options_of_texts_are_refused_for_series():
    with pytest.raises(foretell.ConfigError, match="takes no tokenizer"):
        foretell.train("x.csv", task="forecast", tokenizer={"kind": "bytes"})
    with pytest.raises(foretell.ConfigError, match="horizon"):
        foretell.train("x.txt", horizon=3)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_neither_package_is_imported(package):
    assert package not in importlib.import_module("foretell.forecasting.series_file").__dict__

"""Forecasts as tables and as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from foretell.errors import UsageError
from foretell.files import HTML_MARK, check_target, write_text
from foretell.forecasting.forecaster import Forecast
from foretell.session.plots import check_can_draw

TABLE_MARK = b"unique_id,"
PNG_MARK = b"png"  # the beginning of a file is compared in lower case
DIGITS = 10  # significant ones


def check_outputs(out: Path | None, paths: Path | None, plot: Path | None, html: Path | None) -> None:
    """Refuse files that cannot be written, before any work."""
    given = {out: TABLE_MARK, paths: TABLE_MARK, plot: PNG_MARK, html: HTML_MARK}
    named = [path for path in (out, paths, plot, html) if path is not None]
    if len(set(named)) < len(named):
        raise UsageError("two outputs have the same name; give each its own")
    for path in named:
        check_target(path, given[path])
    check_can_draw(plot)


def table_rows(forecasts: Sequence[Forecast], levels: Sequence[float]) -> Iterator[list[str]]:
    """The header and a row per value: unique_id, ds, mean, median, lo-80, hi-80, ..."""
    bounds = [f"{side}-{level:g}" for level in levels for side in ("lo", "hi")]
    yield ["unique_id", "ds", "mean", "median", *bounds]
    for forecast in forecasts:
        columns = [forecast.mean, forecast.median]
        for level in levels:
            columns += forecast.interval(level)
        for time, *values in zip(forecast.times, *columns, strict=True):
            yield [forecast.series.unique_id, time, *(number(value) for value in values)]


def path_rows(forecasts: Sequence[Forecast]) -> Iterator[list[str]]:
    """The header and a row per value: unique_id, ds, and a column per sampled path."""
    yield ["unique_id", "ds", *(f"path-{index + 1}" for index in range(len(forecasts[0].paths)))]
    for forecast in forecasts:
        for time, values in zip(forecast.times, forecast.paths.T, strict=True):
            yield [forecast.series.unique_id, time, *(number(value) for value in values)]


def number(value: float) -> str:
    """A number as short as its significant digits allow."""
    return format(float(value), f".{DIGITS}g")


def write_table(path: Path, rows: Iterator[list[str]]) -> None:
    """Write rows as CSV, the whole file at once."""
    content = io.StringIO()
    csv.writer(content, lineterminator="\n").writerows(rows)
    write_text(check_target(path, TABLE_MARK), content.getvalue())


def forecast_json(forecast: Forecast, levels: Sequence[float]) -> dict[str, Any]:
    """One object per series."""
    return {
        "unique_id": forecast.series.unique_id,
        "ds": forecast.times,
        "mean": forecast.mean.tolist(),
        "median": forecast.median.tolist(),
        "intervals": {f"{level:g}": [bound.tolist() for bound in forecast.interval(level)] for level in levels},
    }

"""Forecasts as tables, as JSON, as a page and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import numpy as np

from foretell.data.table import FORMATS
from foretell.errors import UsageError
from foretell.forecasting.forecaster import Forecast, Forecaster
from foretell.forecasting.series import Timeline
from foretell.forecasting.series_file import table_text
from foretell.forecasting.series_layout import DETECT, SeriesFormat
from foretell.forecasting.value_model import reading_values
from foretell.insight.page.write_page import PageReport, record_all, write_traced
from foretell.session.plots import check_can_draw, picture, picture_text
from foretell.storage.files import check_target, write_text
from foretell.typesetting.numbers import format_significant

DIGITS = 10  # significant digits


def check_outputs(
    out: Path | None, paths: Path | None = None, plot: Path | None = None, html: Path | None = None, *, overwrite: bool
) -> None:
    """Refuse files that cannot be written, before any work."""
    named = [path for path in (out, paths, plot, html) if path is not None]
    if len({check_target(path, overwrite=overwrite) for path in named}) < len(named):
        raise UsageError("two outputs have the same name; give each its own")
    for path in (out, paths):
        if path is not None and path.suffix.lower() in FORMATS.keys() - {".csv"}:
            raise UsageError(f"{path}: the table is CSV; give it a name that ends in .csv")
    check_can_draw(plot)


def table_rows(forecasts: Sequence[Forecast], levels: Sequence[float]) -> Iterator[list[str]]:
    """The header, then a row per value: unique_id, ds, mean, median, lo-80, hi-80, ..."""
    bounds = [f"{side}-{level:g}" for level in levels for side in ("lo", "hi")]
    yield ["unique_id", "ds", "mean", "median", *bounds]
    for forecast in forecasts:
        columns = [forecast.mean, forecast.median]
        for level in levels:
            columns += forecast.interval(level)
        for time, *values in zip(forecast.times, *columns, strict=True):
            yield [forecast.series.unique_id, time, *(format_significant(value, DIGITS) for value in values)]


def path_rows(forecasts: Sequence[Forecast]) -> Iterator[list[str]]:
    """The header, then a row per value: unique_id, ds, and a column per sampled path."""
    yield ["unique_id", "ds", *(f"path-{index + 1}" for index in range(len(forecasts[0].paths)))]
    for forecast in forecasts:
        for time, values in zip(forecast.times, forecast.paths.T, strict=True):
            yield [forecast.series.unique_id, time, *(format_significant(value, DIGITS) for value in values)]


def written_like(rows: Iterator[list[str]], read: SeriesFormat, names: int = 2) -> str:
    """Rows as CSV; with semicolons and the decimal mark of a file that has semicolons. names: the first columns."""
    if read.separator != ";":
        return table_text(rows)
    mark = read.decimal or ","  # where all numbers are whole, semicolons suggest that the comma is the decimal mark
    header, *body = rows
    values = ([*row[:names], *(cell.replace(".", mark) for cell in row[names:])] for row in body)
    return table_text([header, *values], ";")


def write_table(
    path: Path, rows: Iterator[list[str]], read: SeriesFormat = DETECT, names: int = 2, *, overwrite: bool = False
) -> None:
    """Write rows as CSV, atomically; read: the format of the file with the series. names: see `written_like`."""
    write_text(check_target(path, overwrite=overwrite), written_like(rows, read, names))


def forecast_json(forecast: Forecast, levels: Sequence[float]) -> dict[str, Any]:
    """One object per series."""
    return {
        "unique_id": forecast.series.unique_id,
        "ds": forecast.times,
        "mean": forecast.mean.tolist(),
        "median": forecast.median.tolist(),
        "intervals": {f"{level:g}": [bound.tolist() for bound in forecast.interval(level)] for level in levels},
    }


MOST_TOKENS = 192  # tokens on a page; the attention of more does not fit on a screen


def write_forecast_page(
    forecaster: Forecaster, forecast: Forecast, path: Path, *, overwrite: bool = False
) -> PageReport:
    """Write the page of a forecast, like other models' pages, with the time and value of each token.

    The context is the series' last values and the first values of the median. Attention shows the past times that each
    head attended to.
    """
    target = check_target(path, overwrite=overwrite)
    horizon = min(forecast.paths.shape[1], MOST_TOKENS // 4)
    most = min(MOST_TOKENS, forecaster.context_length) - horizon
    history = forecast.series.values[-most:]
    model = reading_values(forecaster, history, read_after=horizon)
    values = [*history, *forecast.median[:horizon]]
    traced = record_all(model, " ".join(map(str, values)), levels=model.levels)
    start = len(forecast.series) - len(history)
    times = [forecast.series.timeline.text(start + index) for index in range(len(values))]
    pieces = [f"{time} {value}" for time, value in zip(times, traced.pieces, strict=True)]
    return write_traced(replace(traced, text=forecast.series.unique_id, pieces=pieces), path, target)


MOST_PANELS = 6
HISTORY = 3  # shown history, in horizons
FEWEST_SHOWN = 24  # fewest shown values of history
MEDIAN, FANS = "#9a3412", ("#fed7aa", "#fdba74", "#fb923c", "#f97316")  # wide to narrow
TICKS = 8


def draw_forecasts(
    path: Path, forecasts: Sequence[Forecast], levels: Sequence[float], *, overwrite: bool = False
) -> list[str]:
    """Draw the first few forecasts, one panel each; returns a line about any omitted ones."""
    shown = forecasts[:MOST_PANELS]
    with picture(check_target(path, overwrite=overwrite), (9, 1 + 2.6 * len(shown)), 130) as figure:
        panels = figure.subplots(len(shown), squeeze=False)[:, 0]
        for axes, forecast in zip(panels, shown, strict=True):
            draw_panel(axes, forecast, levels)
        panels[0].legend(loc="upper left", fontsize=8, ncols=2 + len(levels))
    if len(shown) == len(forecasts):
        return []
    return [f"{path} shows {len(shown)} of {len(forecasts):,} series; --series chooses"]


def choose_ticks(first: int, last: int, timeline: Timeline) -> list[int]:
    """The indices of about TICKS values, at round numbers and at whole quarters or years of months."""
    if timeline.unit in ("number", "month"):
        ordinals = {timeline.first + index * timeline.step: index for index in range(first, last + 1)}
        decades = (factor * 10**power for power in range(20) for factor in (1, 2, 5))
        steps = chain((1, 3, 6), (12 * years for years in decades)) if timeline.unit == "month" else decades
        step = next(step for step in steps if step * TICKS >= max(ordinals) - min(ordinals))
        ticks = [index for ordinal, index in ordinals.items() if ordinal % step == 0]  # months count from January 1970
        if len(ticks) > 1:
            return ticks
    return np.linspace(first, last, TICKS).round().astype(int).tolist()


def draw_panel(axes: Any, forecast: Forecast, levels: Sequence[float]) -> None:
    """One series: history, median, and intervals from wide to narrow, the narrow ones darker."""
    horizon = forecast.paths.shape[1]
    history = forecast.series.values[-max(FEWEST_SHOWN, HISTORY * horizon) :]
    end = len(forecast.series)
    past, future = np.arange(end - len(history), end), np.arange(end, end + horizon)
    axes.plot(past, history, color="#374151", linewidth=1.2, label="history")
    known = history[~np.isnan(history)][-1]
    joined = np.concatenate([[end - 1], future])  # the intervals start at the last known value
    for colour, level in zip(cycle(FANS), sorted(levels, reverse=True), strict=False):
        low, high = (np.concatenate([[known], bound]) for bound in forecast.interval(level))
        axes.fill_between(joined, low, high, color=colour, linewidth=0, label=f"{level:g}% interval")
    axes.plot(joined, np.concatenate([[known], forecast.median]), color=MEDIAN, linewidth=1.6, label="median")
    axes.axvline(end - 1, color="#9ca3af", linewidth=0.8, linestyle=":")
    ticks = choose_ticks(int(past[0]), int(future[-1]), forecast.series.timeline)
    axes.set_xticks(ticks, [forecast.series.timeline.text(tick) for tick in ticks], fontsize=8)
    axes.set_title(picture_text(forecast.series.unique_id), fontsize=10, loc="left")
    axes.grid(alpha=0.25)
    axes.margins(x=0.01)

"""Forecasts as a picture: the end of the history, the median, and a fan of intervals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from foretell.errors import OutputError
from foretell.files import check_target, printable_name
from foretell.forecasting.forecaster import Forecast
from foretell.forecasting.output import PNG_MARK
from foretell.session.plots import import_figure

MOST_PANELS = 6
HISTORY = 3  # horizons of history that are shown
FEWEST_SHOWN = 24  # values of history
MEDIAN, FANS = "#9a3412", ("#fed7aa", "#fdba74", "#fb923c", "#f97316")  # wide to narrow
TICKS = 6


def draw_forecasts(path: Path, forecasts: Sequence[Forecast], levels: Sequence[float]) -> list[str]:
    """Draw the first few forecasts, one panel each; returns a line on what was left out."""
    shown = forecasts[:MOST_PANELS]
    figure = import_figure(path)(figsize=(9, 1 + 2.6 * len(shown)), dpi=130, layout="constrained")
    panels = figure.subplots(len(shown), squeeze=False)[:, 0]
    for axes, forecast in zip(panels, shown, strict=True):
        draw_panel(axes, forecast, levels)
    panels[0].legend(loc="upper left", fontsize=8, ncols=2 + len(levels))
    try:
        figure.savefig(check_target(path, PNG_MARK), format="png")
    except OSError as error:
        raise OutputError(f"could not write {path}: {error.strerror or error}") from error
    left_out = len(forecasts) - len(shown)
    return [f"{path} shows {len(shown)} series, {left_out:,} more are left out; --series chooses"] if left_out else []


def draw_panel(axes: Any, forecast: Forecast, levels: Sequence[float]) -> None:
    """One series: history, median, and intervals from wide to narrow, the narrow ones darker."""
    horizon = forecast.paths.shape[1]
    history = forecast.series.values[-max(FEWEST_SHOWN, HISTORY * horizon) :]
    end = len(forecast.series)
    past, future = np.arange(end - len(history), end), np.arange(end, end + horizon)
    axes.plot(past, history, color="#374151", linewidth=1.2, label="history")
    known = history[~np.isnan(history)][-1]
    joined = np.concatenate([[end - 1], future])  # the fan opens at the last known value
    for colour, level in zip(cycle(FANS), sorted(levels, reverse=True), strict=False):
        low, high = (np.concatenate([[known], bound]) for bound in forecast.interval(level))
        axes.fill_between(joined, low, high, color=colour, linewidth=0, label=f"{level:g}% interval")
    axes.plot(joined, np.concatenate([[known], forecast.median]), color=MEDIAN, linewidth=1.6, label="median")
    axes.axvline(end - 1, color="#9ca3af", linewidth=0.8, linestyle=":")
    ticks = np.linspace(past[0], future[-1], TICKS).round().astype(int)
    axes.set_xticks(ticks, [forecast.series.timeline.text(int(tick)) for tick in ticks], fontsize=8)
    axes.set_title(printable_name(forecast.series.unique_id), fontsize=10, loc="left")
    axes.grid(alpha=0.25)
    axes.margins(x=0.01)

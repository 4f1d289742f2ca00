"""Error measures as defined by the M4 competition, and baseline forecasts."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

PEER = "statsforecast"
WITHOUT_PEER = "AutoETS is not compared; it needs a package: pip install 'foretell[forecast]'"
LONGEST_SEASON = 24  # longest season, in values, that AutoETS estimates
FEWEST_VALUES = 12  # fewest values for AutoETS


def has_peer() -> bool:
    return importlib.util.find_spec(PEER) is not None


def auto_ets(history: np.ndarray, season: int, horizon: int) -> np.ndarray:
    """The mean forecast (H,) of statsforecast's AutoETS; the seasonal naive forecast for very short histories.

    Missing values are interpolated. A season is ignored if it is too long, or the history has fewer than two of it.
    """
    known = np.flatnonzero(~np.isnan(history))
    values = np.interp(np.arange(known[0], len(history)), known, history[known])
    if len(values) < FEWEST_VALUES:
        return seasonal_naive(history, season, horizon)
    length = season if season <= LONGEST_SEASON and len(values) > 2 * season else 1
    models = importlib.import_module(f"{PEER}.models")
    return np.asarray(models.AutoETS(season_length=length).forecast(y=values, h=horizon)["mean"], dtype=np.float64)


def seasonal_naive(history: np.ndarray, season: int, horizon: int) -> np.ndarray:
    """The forecast (H,) that repeats the last known value of each phase of the season.

    It is the last value of all for a phase without one, and with less history than a season.
    """
    known = np.flatnonzero(~np.isnan(history))
    cycle = np.full(season, history[known[-1]])
    if len(history) >= season:
        cycle[(known - len(history)) % season] = history[known]  # of several values of a phase, the last one stays
    return np.resize(cycle, horizon)


def smape(actual: np.ndarray, forecast: np.ndarray) -> float:
    """The mean of 200 |y - f| / (|y| + |f|), in percent; 0 if both are 0 (Makridakis et al. 2020, equation 1)."""
    size = np.abs(actual) + np.abs(forecast)
    return float(200 * np.nanmean(np.abs(actual - forecast) / np.where(size == 0, 1, size)))


def mase_scale(history: np.ndarray, season: int) -> float:
    """The mean error of the seasonal naive forecast within the history; NaN if it cannot be measured or is 0."""
    if len(history) <= season:
        return math.nan
    errors = np.abs(history[season:] - history[:-season])
    scale = float(np.nanmean(errors)) if np.isfinite(errors).any() else math.nan
    return scale if scale > 0 else math.nan


def mase(actual: np.ndarray, forecast: np.ndarray, history: np.ndarray, season: int) -> float:
    """The mean absolute error divided by `mase_scale` (Hyndman and Koehler 2006); NaN if that is NaN."""
    return float(np.nanmean(np.abs(actual - forecast))) / mase_scale(history, season)


def quantile_loss(actual: np.ndarray, quantiles: Mapping[float, np.ndarray]) -> float:
    """Twice the pinball loss, averaged over quantiles and summed over values (the sum that WQL divides)."""
    losses = [
        2 * np.nansum(np.where(actual >= forecast, share, share - 1) * (actual - forecast))
        for share, forecast in quantiles.items()
    ]
    return float(np.mean(losses))


def coverage(actual: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[int, int]:
    """The number of known values inside an interval, and of all known values."""
    known = ~np.isnan(actual)
    return int(((actual >= low) & (actual <= high) & known).sum()), int(known.sum())


def mean_by_column(rows: Sequence[np.ndarray], length: int) -> np.ndarray:
    """The mean (length,) at each position of rows of different lengths, over known values; 0 if none is known."""
    padded = np.full((len(rows), length), np.nan)
    for filled, row in zip(padded, rows, strict=True):
        filled[: len(row)] = row
    return np.nansum(padded, 0) / np.maximum((~np.isnan(padded)).sum(0), 1)


def over_known(reduce: Callable[[list[float]], Any], values: Sequence[float]) -> float | None:
    """The mean or median of the measured values; None if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return float(reduce(known)) if known else None

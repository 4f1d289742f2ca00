"""Errors of forecasts, as the M4 competition defines them, and of their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

QUANTILES = tuple(round(0.1 * index, 1) for index in range(1, 10))


def seasonal_naive(history: np.ndarray, season: int, horizon: int) -> np.ndarray:
    """The forecast (H,) that repeats the last season; with less history, or a missing value there, the last value."""
    last = history[~np.isnan(history)][-1]
    if len(history) < season:
        return np.full(horizon, last)
    cycle = history[-season:]
    repeated = np.tile(cycle, math.ceil(horizon / season))[:horizon]
    return np.where(np.isnan(repeated), last, repeated)


def smape(actual: np.ndarray, forecast: np.ndarray) -> float:
    """200 |y - f| / (|y| + |f|) on average, in percent; 0 where both are 0 (Makridakis et al. 2020, equation 1)."""
    size = np.abs(actual) + np.abs(forecast)
    return float(200 * np.nanmean(np.abs(actual - forecast) / np.where(size == 0, 1, size)))


def mase_scale(history: np.ndarray, season: int) -> float:
    """The mean error of the seasonal naive forecast inside the history; NaN where it cannot be measured, or is 0."""
    if len(history) <= season:
        return math.nan
    errors = np.abs(history[season:] - history[:-season])
    scale = float(np.nanmean(errors)) if np.isfinite(errors).any() else math.nan
    return scale if scale > 0 else math.nan


def mase(actual: np.ndarray, forecast: np.ndarray, history: np.ndarray, season: int) -> float:
    """The mean absolute error over `mase_scale` (Hyndman and Koehler 2006); NaN where that is."""
    return float(np.nanmean(np.abs(actual - forecast))) / mase_scale(history, season)


def quantile_loss(actual: np.ndarray, quantiles: Mapping[float, np.ndarray]) -> float:
    """Twice the pinball loss, averaged over quantiles and summed over values (the sum that WQL divides)."""
    losses = [
        2 * np.nansum(np.where(actual >= forecast, share, share - 1) * (actual - forecast))
        for share, forecast in quantiles.items()
    ]
    return float(np.mean(losses))


def interval_of(paths: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """The bounds (H,), (H,) of `level` percent of the distribution that paths (samples, H) were drawn from.

    Quantiles at p (n + 1) of n samples: an interval between those holds `level` percent of further draws on average.
    Interpolating at p (n - 1), as numpy does by default, holds less: 72% of the draws for 80% and 20 samples.
    """
    outside = (1 - level / 100) / 2
    low, high = np.quantile(paths, (outside, 1 - outside), axis=0, method="weibull")
    return low, high


def coverage(actual: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[int, int]:
    """How many of the known values lie inside an interval, and how many there are."""
    known = ~np.isnan(actual)
    return int(((actual >= low) & (actual <= high) & known).sum()), int(known.sum())


def mean_of(values: Sequence[float]) -> float | None:
    """The mean of what could be measured; None for nothing."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else None


def median_of(values: Sequence[float]) -> float | None:
    """The median of what could be measured; None for nothing."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if known else None

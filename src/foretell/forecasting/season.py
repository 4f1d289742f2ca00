"""The season of series: given, usual for their frequency, or found in their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretell.errors import UsageError
from foretell.forecasting.series import Series

MOST_SERIES = 200  # that are looked at
LONGEST = 400  # values per season that is looked for
CLEAR = 0.3  # autocorrelation from which a season counts
AS_GOOD = 0.9  # of the best: a shorter season this good is the season, since its multiples are as good


def choose_season(series: Sequence[Series], given: int | None) -> tuple[int, str]:
    """The number of values per season, and why."""
    if given is not None:
        if given < 1:
            raise UsageError(f"--season must be at least 1, not {given}")
        return given, "as given"
    timeline = series[0].timeline
    if timeline.season is not None:
        return timeline.season, f"the usual one for steps of {timeline.frequency}"
    season, strength = find_season([each.values for each in series])
    if season == 1:
        return 1, "none found in the values; --season names one"
    return season, f"found in the values, autocorrelation {strength:.2f}"


def find_season(series: Sequence[np.ndarray]) -> tuple[int, float]:
    """The shortest lag at which the changes of the series repeat nearly as well as at the best one; 1 for none."""
    chosen = series[:: max(1, len(series) // MOST_SERIES)]
    curves = [autocorrelation(values) for values in chosen]
    longest = max((len(curve) for curve in curves), default=0)
    stacked = np.full((len(curves), longest), np.nan)
    for row, curve in zip(stacked, curves, strict=True):
        row[: len(curve)] = curve
    if longest < 3:
        return 1, 0.0
    counted = np.maximum((~np.isnan(stacked)).sum(0), 1)
    mean = np.nansum(stacked, 0) / counted
    mean[:2] = 0
    best = float(mean.max())
    if best < CLEAR:
        return 1, best
    season = int(np.flatnonzero(mean >= AS_GOOD * best)[0])
    return season, float(mean[season])


def autocorrelation(values: np.ndarray) -> np.ndarray:
    """The autocorrelation of the changes from value to value, at lags from 0 to a third of the length."""
    changes = np.diff(values)
    changes = np.nan_to_num(changes - np.nanmean(changes)) if np.isfinite(changes).any() else changes[:0]
    count = min(LONGEST, len(changes) // 3) + 1
    power = float(changes @ changes)
    if count < 4 or power == 0:
        return np.zeros(0)
    spectrum = np.abs(np.fft.rfft(changes / np.sqrt(power), 2 * len(changes))) ** 2
    return np.fft.irfft(spectrum)[:count]

"""A series: its name, its values, their times and their season, which is given, usual for the frequency, or found in
the values."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretell.errors import UsageError
from foretell.forecasting.timeline import Timeline

MOST_SERIES = 200  # that are looked at
LONGEST = 400  # values per season that is looked for
CLEAR = 0.3  # autocorrelation from which a season counts
AS_GOOD = 0.9  # of the best: a shorter season this good is the season, since its multiples are as good


@dataclass(frozen=True, eq=False)
class Series:
    """Values (T,) in float64, NaN where one is missing, and the times they belong to."""

    unique_id: str
    values: np.ndarray
    timeline: Timeline

    def __len__(self) -> int:
        return len(self.values)

    def until(self, end: int) -> Series:
        return Series(self.unique_id, self.values[:end], self.timeline)

    def tail(self, count: int) -> Series:
        skipped = max(0, len(self.values) - count)
        return Series(self.unique_id, self.values[skipped:], self.timeline.moved(skipped))


def fingerprint(series: Sequence[Series]) -> str:
    """A hash of names and values, so that a resumed training can tell other data."""
    digest = hashlib.sha256()
    for each in series:
        digest.update(repr((each.unique_id, len(each))).encode())
        digest.update(np.ascontiguousarray(each.values).data)
    return digest.hexdigest()[:16]


# --- seasons ---------------------------------------------------------------------------------------------------------


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

"""A series: its name, its values, their times and their season.

Times are read in the forms in which files write them, and continued in the same form. A season is given, usual for the
frequency, or found in the values.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from foretell.errors import DataError, UsageError

logger = logging.getLogger(__name__)

Unit = Literal["number", "second", "month", "month end", "weekday"]
ISO = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?)?")
COMPACT = re.compile(r"(1[5-9]|20|21)\d{2}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")  # 20240531
WHOLE = re.compile(r"[+-]?\d{1,18}")
SECONDS = {60: "minute", 3600: "hour", 86400: "day", 604800: "week"}
SEASONS: dict[tuple[str, int], int] = {  # values per cycle that is usual for a frequency
    **{("second", step): 86400 // step for step in (300, 600, 900, 1200, 1800, 3600)},  # a day
    ("second", 86400): 7,
    ("second", 604800): 52,
    ("second", 60): 60,
    ("weekday", 1): 5,
    **{(unit, step): 12 // step for unit in ("month", "month end") for step in (1, 3, 4, 6)},
}
FEWEST_WEEKDAYS = 10  # fewer dates without a Saturday or Sunday may be daily
COMMON_DAYS = 28  # the days that every month has
MOST_ABSENT = 0.5  # share of the times of a regular grid that may be absent
MOST_SERIES = 200  # that are looked at
LONGEST = 400  # values per season that is looked for
CLEAR = 0.3  # autocorrelation from which a season counts
AS_GOOD = 0.9  # of the best: a shorter season this good is the season, since its multiples are as good


@dataclass(frozen=True)
class Timeline:
    """Equally spaced times: value i is at `first + i * step` units. `style` is one of the times as the file has it."""

    unit: Unit
    step: int
    first: int
    style: str

    def text(self, index: int) -> str:
        """The time of a value, written as in the file; beyond the last one the times continue."""
        at = self.first + index * self.step
        return str(at) if self.unit == "number" else write_time(at, self.unit, self.style)

    @property
    def season(self) -> int | None:
        """The number of values in the usual cycle of this frequency; None for numbers, which do not tell."""
        return SEASONS.get((self.unit, self.step))

    @property
    def frequency(self) -> str:
        """`1 hour`, `3 months`, `1 weekday`."""
        count, unit = self.step, self.unit
        if unit == "second":
            size = max((size for size in SECONDS if count % size == 0), default=1)
            count, unit = count // size, SECONDS.get(size, "second")
        return f"{count} {unit}{'' if count == 1 else 's'}"

    def moved(self, steps: int) -> Timeline:
        """The timeline that begins `steps` later."""
        return Timeline(self.unit, self.step, self.first + steps * self.step, self.style)


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


# --- times -----------------------------------------------------------------------------------------------------------


def numbered(first: int = 1) -> Timeline:
    """1, 2, 3, ...: of values without times."""
    return Timeline("number", 1, first, "1")


def find_timeline(texts: Sequence[str], name: str) -> tuple[Timeline, np.ndarray]:
    """The timeline of at least two times, and the index of each on it, from 0. Raises DataError if irregular."""
    if all(COMPACT.fullmatch(text) for text in texts):
        texts = [f"{text[:4]}-{text[4:6]}-{text[6:]}" for text in texts]
        logger.info(f"{name}: times such as {texts[0].replace('-', '')} are read as dates, {texts[0]}")
    unit, ordinals = read_times(texts, name)
    order = np.argsort(ordinals, kind="stable")
    gaps = np.diff(ordinals[order])
    if (gaps == 0).any():
        raise DataError(
            f"{name}: the time {texts[order[int(np.argmin(gaps))]]} occurs twice; keep one row of each time"
        )
    step = Counter(gaps.tolist()).most_common(1)[0][0]
    odd = np.flatnonzero(gaps % step)
    if len(odd):
        before, after = texts[order[odd[0]]], texts[order[odd[0] + 1]]
        raise DataError(
            f"{name}: irregular times, {after} follows {before} where a step is {Timeline(unit, step, 0, '').frequency}"
            "; give equally spaced values"
        )
    first = int(ordinals[order[0]])
    indices = (ordinals - first) // step
    if len(texts) < (1 - MOST_ABSENT) * (int(indices.max()) + 1):
        raise DataError(
            f"{name}: irregular times, {int(indices.max()) + 1 - len(texts):,} of {int(indices.max()) + 1:,} are absent"
        )
    return Timeline(unit, int(step), first, texts[0]), indices


def is_time(text: str) -> bool:
    """True for a date, with or without a time of day."""
    return ISO.fullmatch(text) is not None


def read_times(texts: Sequence[str], name: str) -> tuple[Unit, np.ndarray]:
    """Times as whole numbers of the unit that suits them."""
    if all(WHOLE.fullmatch(text) for text in texts):
        return "number", np.array([int(text) for text in texts], dtype=np.int64)
    for text in texts:
        if not ISO.fullmatch(text):
            raise DataError(
                f"{name}: '{text[:40]}' is not a time; write whole numbers, or dates such as 2024-05-31 13:00:00 "
                "without a time zone"
            )
    try:
        times = np.array(texts, dtype="datetime64[s]")
    except ValueError as error:
        raise DataError(f"{name}: a time that does not exist ({error})") from None
    unit = unit_of(times)
    return unit, ordinals_of(times, unit)


def unit_of(times: np.ndarray) -> Unit:
    """The unit in which dates may be equally spaced: months, month ends, weekdays, or else seconds."""
    days, months = times.astype("datetime64[D]"), times.astype("datetime64[M]")
    if (days + 1 == (months + 1).astype("datetime64[D]")).all() and (times == days).all():
        return "month end"
    offsets = set((times - months).astype(np.int64).tolist())
    if len(offsets) == 1 and max(offsets) < COMMON_DAYS * 86400 and len(set(months.tolist())) > 1:
        return "month"
    is_weekday = len(times) >= FEWEST_WEEKDAYS and (times == days).all() and np.is_busday(days).all()
    return "weekday" if is_weekday and (np.diff(np.sort(days)).astype(int) == 3).any() else "second"


def ordinals_of(times: np.ndarray, unit: Unit) -> np.ndarray:
    """The times in units since 1970-01-01."""
    if unit == "weekday":
        return np.busday_count(np.datetime64("1970-01-01"), times.astype("datetime64[D]"))
    if unit == "second":
        return times.astype(np.int64)
    return times.astype("datetime64[M]").astype(np.int64)


def write_time(ordinal: int, unit: Unit, style: str) -> str:
    """The time `ordinal` units after 1970-01-01, in the form of another time of the same series."""
    if unit == "month":
        return str(np.datetime64(ordinal, "M")) + style[len("2024-05") :]
    if unit == "month end":
        return str((np.datetime64(ordinal, "M") + 1).astype("datetime64[D]") - 1)
    if unit == "weekday":
        return str(np.busday_offset(np.datetime64("1970-01-01"), ordinal)) + style[len("2024-05-31") :]
    text = str(np.datetime64(ordinal, "s"))  # 2024-05-31T13:00:00
    return (text.replace("T", style[10]) if len(style) > 10 else text)[: len(style)]


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

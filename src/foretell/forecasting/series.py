"""Series: names, values and equally spaced times, with the detection of frequency and season."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from foretell.data.data_use import hash_spans, hash_texts, mixed
from foretell.data.numbers import LARGEST
from foretell.errors import DataError, UsageError
from foretell.forecasting.date_format import (
    DAY,
    NUMBER,
    choose_date_format,
    has_clock,
    offset_seconds,
    read_times,
    write_time,
    zone_time,
)
from foretell.forecasting.metrics import mean_by_column

Unit = Literal["number", "second", "month", "month end", "weekday"]
SECONDS = {60: "minute", 3600: "hour", 86400: "day", 604800: "week"}
SEASONS: dict[tuple[str, int], int] = {  # the usual number of values per cycle, by frequency
    **{("second", step): 86400 // step for step in (300, 600, 900, 1200, 1800, 3600)},  # a day
    ("second", 86400): 7,
    ("second", 604800): 52,
    ("second", 60): 60,
    ("weekday", 1): 5,
    **{(unit, step): 12 // step for unit in ("month", "month end") for step in (1, 3, 4, 6)},
}
WEEKDAYS = ("Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday")  # from 1970-01-01 on
FEWEST_WEEKDAYS = 10  # fewer dates without a Saturday or Sunday may still be daily
COMMON_DAYS = 28  # days that every month has
MOST_ABSENT = 0.5  # largest share of absent times on a regular grid
CLOCK_CHANGE = 3600  # seconds

Earlier = np.ndarray | tuple[()]  # values of a series before a context


@dataclass(frozen=True)
class Timeline:
    """Equally spaced times: value i is at `first + i * step` units plus `offset` seconds since 1970-01-01.

    date_format: the format of times in text. local: the offset from UTC at its end, as text. zone: the zone of the
    times, if it is known. Steps of days and longer follow its clocks; shorter steps are equal also when clocks change.
    """

    unit: Unit
    step: int
    first: int
    date_format: str = NUMBER
    offset: int = 0
    local: str = ""
    zone: dt.tzinfo | None = None

    def text(self, index: int) -> str:
        """The time of a value in the file's format; times continue after the last value."""
        at = self.first + index * self.step
        if self.unit == "number":
            return str(at)
        seconds, local = self.seconds(at), self.local
        if self.zone is not None:
            seconds, local = zone_time(seconds, local, self.zone, keeps_clock=self.is_in_days)
        return write_time(seconds, self.date_format, local)

    def seconds(self, ordinal: int) -> int:
        """The time in seconds since 1970-01-01 by the local clock; a number is not changed."""
        if self.unit == "number":
            return ordinal
        return int(start_of(ordinal, self.unit).astype("datetime64[s]").astype(np.int64)) + self.offset

    @property
    def is_in_days(self) -> bool:
        """True for steps of days and longer."""
        return self.unit != "second" or self.step % DAY == 0

    @property
    def season(self) -> int | None:
        """The number of values in the usual cycle of this frequency; None for numbers."""
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
        return replace(self, first=self.first + steps * self.step)


def numbered() -> Timeline:
    """The timeline 1, 2, 3, ... for values without times."""
    return Timeline("number", 1, first=1)


EQUAL_STEPS = "give equally spaced values, or leave out the column of times to count values"


def find_timeline(
    texts: Sequence[str], name: str, date_format: str | None = None, zone: dt.tzinfo | None = None
) -> tuple[Timeline, np.ndarray]:
    """The timeline of at least two times, and the index of each on it, from 0. Raises DataError if irregular."""
    date_format = date_format or choose_date_format(dict.fromkeys(texts, name))
    seconds, local = read_times(texts, date_format, name)
    unit = "number" if date_format == NUMBER else unit_of(seconds.astype("datetime64[s]"))
    ordinals = ordinals_of(seconds, unit)
    order = np.argsort(ordinals, kind="stable")
    gaps = np.diff(ordinals[order])
    if (gaps == 0).any():
        first, second = (texts[order[int(np.argmin(gaps)) + index]] for index in (0, 1))
        times = first if first == second else f"{first} (also written {second})"
        message = (
            f"{name}: the time {times} occurs twice; keep one row of each time, or join the columns that together name "
            "a series into one"
        )
        advice = "; where clocks were set back, write times with their offset, as in +01:00"
        raise DataError(message + advice if has_clock(date_format) else message)
    step = Counter(gaps.tolist()).most_common(1)[0][0]
    # If the file has UTC times, local days are an hour longer or shorter when clocks change
    slack = CLOCK_CHANGE if unit == "second" and step % DAY == 0 else 0
    odd = np.flatnonzero(np.abs(gaps - np.rint(gaps / step) * step) > slack)
    if len(odd):
        before, after = texts[order[odd[0]]], texts[order[odd[0] + 1]]
        raise DataError(
            f"{name}: irregular times, {after} follows {before} where a step is {Timeline(unit, step, 0).frequency}; "
            + EQUAL_STEPS
        )
    first = int(ordinals[order[0]])
    indices = np.rint((ordinals - first) / step).astype(np.int64)
    length = int(indices.max()) + 1
    if len(texts) < (1 - MOST_ABSENT) * length:
        raise DataError(f"{name}: irregular times, {length - len(texts):,} of {length:,} are absent; {EQUAL_STEPS}")
    first = int(ordinals[order[-1]] - step * (length - 1))  # times continue after the last one
    return Timeline(unit, int(step), first, date_format, offset_of(seconds, unit), local, zone), indices


def lone_timeline(text: str, shared: Timeline | None, name: str) -> Timeline:
    """The timeline of a series with a single time, with the frequency of another series."""
    if shared is None:
        raise DataError(f"{name}: a single value does not tell how far times are apart; give at least two")
    seconds, local = read_times([text], shared.date_format, name)
    first = int(ordinals_of(seconds, shared.unit)[0])
    return replace(shared, first=first, offset=offset_of(seconds, shared.unit), local=local)


def unit_of(times: np.ndarray) -> Unit:
    """The unit in which times may be equally spaced: months, month ends, weekdays, or seconds."""
    days, months = times.astype("datetime64[D]"), times.astype("datetime64[M]")
    if (days + 1 == (months + 1).astype("datetime64[D]")).all() and (times == days).all():
        return "month end"
    offsets = set((times - months).astype(np.int64).tolist())
    if len(offsets) == 1 and max(offsets) < COMMON_DAYS * DAY and len(set(months.tolist())) > 1:
        return "month"
    is_weekday = len(times) >= FEWEST_WEEKDAYS and (times == days).all() and np.is_busday(days).all()
    return "weekday" if is_weekday and (np.diff(np.sort(days)).astype(int) == 3).any() else "second"


def ordinals_of(seconds: np.ndarray, unit: Unit) -> np.ndarray:
    """The times in units since 1970-01-01; numbers are not changed."""
    times = seconds.astype("datetime64[s]")
    if unit == "weekday":
        return np.busday_count(np.datetime64("1970-01-01"), times.astype("datetime64[D]"))
    return seconds if unit in ("second", "number") else times.astype("datetime64[M]").astype(np.int64)


def start_of(ordinal: int, unit: Unit) -> np.datetime64:
    """The inverse of `ordinals_of`, without the offset."""
    if unit == "month":
        return np.datetime64(ordinal, "M")
    if unit == "month end":
        return (np.datetime64(ordinal, "M") + 1).astype("datetime64[D]") - 1
    return np.busday_offset(np.datetime64("1970-01-01"), ordinal) if unit == "weekday" else np.datetime64(ordinal, "s")


def offset_of(seconds: np.ndarray, unit: Unit) -> int:
    """The seconds from the start of a month to the time."""
    times = seconds[:1].astype("datetime64[s]")
    return int((times - times.astype("datetime64[M]")).astype(np.int64)[0]) if unit == "month" else 0


MOST_SERIES = 200  # series used for the search
LONGEST = 400  # longest season in the search, in values
VALUES_HASHED = 4  # values of a hash, the last of which is the one that counts
CLEAR = 0.3  # smallest autocorrelation of a season
SEASONS_AHEAD = 2  # the default horizon, in seasons
SLOW = 7  # the maximum is searched up to a seventh above the first good lag
AS_GOOD = 0.9  # share of the best autocorrelation that a shorter lag needs, because multiples of a season are as good


@dataclass(frozen=True, eq=False)
class Series:
    """Values (T,) in float64, with NaN for missing values, and their times."""

    unique_id: str
    values: np.ndarray
    timeline: Timeline

    def __post_init__(self) -> None:
        check_size(self.values, self.unique_id)

    def __len__(self) -> int:
        return len(self.values)

    def until(self, end: int) -> Series:
        return Series(self.unique_id, self.values[:end], self.timeline)

    def values_after(self, other: Series) -> np.ndarray:
        """The values of the series that follows, from the end of this one on, by their times.

        Numbers may begin again. Raises DataError for times that do not continue this series.
        """
        own, after = self.timeline, other.timeline
        begins_again = own.unit != after.unit or after.first <= own.first + (len(self) - 1) * own.step
        if "number" in (own.unit, after.unit) and begins_again:
            return other.values
        known = np.flatnonzero(~np.isnan(other.values))
        shift = offset_seconds(own.local) - offset_seconds(after.local)
        seconds = np.array([after.seconds(after.first + int(index) * after.step) + shift for index in known])
        if own.unit not in ("number", "second"):  # the last offset moves times across a change of clocks by an hour
            seconds = np.rint(seconds / DAY).astype(np.int64) * DAY
        steps = np.rint((ordinals_of(seconds, own.unit) - own.first) / own.step).astype(np.int64) - len(self)
        if not 0 <= steps[0] <= len(self) or (np.diff(steps) < 1).any():
            raise DataError(
                f"series '{self.unique_id[:40]}': the times {after.text(0)}, ... do not continue it after "
                f"{own.text(len(self) - 1)} in steps of {own.frequency}"
            )
        values = np.full(steps[-1] + 1, np.nan)
        values[steps] = other.values[known]
        return values


@dataclass(frozen=True)
class Window:
    """Values of a series (T,), of which the first `context` are known and the others are forecast.

    before: earlier values of the series. name: the name of the series.
    """

    values: np.ndarray
    context: int
    season: int = 1
    before: Earlier = ()
    name: str = ""

    @property
    def history(self) -> np.ndarray:
        """All values before the forecast."""
        known = self.values[: self.context]
        return np.concatenate([self.before, known]) if len(self.before) else known

    @property
    def actual(self) -> np.ndarray:
        """The values to forecast, (H,)."""
        return self.values[self.context :]

    @property
    def is_measurable(self) -> bool:
        """True if there are known values before and after the start of the forecast."""
        return bool(np.isfinite(self.history).any() and np.isfinite(self.actual).any())


def check_size(values: np.ndarray, name: str) -> None:
    """Raise DataError for a value that is too large to compute with."""
    largest = float(np.nanmax(np.abs(values), initial=0))
    if largest > LARGEST:
        raise too_large(f"{largest:g}", name)


def too_large(value: str, where: str) -> DataError:
    return DataError(f"{where}: {value} is beyond {LARGEST:g}, too large to compute with; rescale it")


def absent_weekdays(series: Series) -> list[str]:
    """The days of the week on which a series of days has no value; none of less than two weeks."""
    timeline = series.timeline
    if (timeline.unit, timeline.step) != ("second", DAY) or len(series) < 2 * len(WEEKDAYS):
        return []
    known = set(((timeline.first // DAY + np.flatnonzero(~np.isnan(series.values))) % len(WEEKDAYS)).tolist())
    return [day for index, day in enumerate(WEEKDAYS) if index not in known]


def fingerprint(series: Sequence[Series]) -> str:
    """A hash of names and values, with which a resumed training detects other data."""
    digest = hashlib.sha256()
    for each in series:
        digest.update(repr((each.unique_id, len(each))).encode())
        digest.update(np.ascontiguousarray(each.values).data)
    return digest.hexdigest()[:16]


def hash_values(series: Series, values: np.ndarray, first: int = 0) -> np.ndarray:
    """The hashes of the known values from index `first` on, with the name of the series, their times and the values
    before them, because small numbers are often equal by chance."""
    ends = np.arange(max(first, VALUES_HASHED - 1), len(values)) + 1
    ends = ends[~np.isnan(values[ends - 1])]
    timeline = series.timeline
    name = hash_texts([f"{series.unique_id}\0{timeline.unit}"])
    times = (timeline.first + (ends - 1) * timeline.step).astype(np.int64).view(np.uint64)
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    return mixed(hash_spans(bits, ends - VALUES_HASHED, ends) ^ mixed(times + name))


def choose_season(series: Sequence[Series], given: int | None) -> tuple[int, str]:
    """The number of values per season, and the reason."""
    if given is not None:
        longest = max(map(len, series))
        if not 1 <= given <= longest:
            raise UsageError(f"season must be from 1 to {longest}, the length of the longest series, not {given}")
        return given, "as given"
    timeline = series[0].timeline
    if timeline.season is not None:
        return timeline.season, f"the usual one for steps of {timeline.frequency}"
    season, strength = find_season([each.values for each in series])
    if season == 1:
        return 1, "none found in the values; --season names one"
    return season, f"found in the values, autocorrelation {strength:.2f}"


def choose_seasons(series: Sequence[Series], given: int | None) -> tuple[list[int], str]:
    """The number of values per season for each series, by its interval, and the reason."""
    if given is not None or len(intervals := frequencies(series)) == 1:
        season, why = choose_season(series, given)
        return [season] * len(series), why
    chosen = {
        interval: choose_season([each for each in series if each.timeline.frequency == interval], None)[0]
        for interval in intervals
    }
    why = ", ".join(f"{season} for steps of {interval}" for interval, season in chosen.items())
    return [chosen[each.timeline.frequency] for each in series], f"{why}, since series have several intervals"


def single(seasons: Sequence[int]) -> int | None:
    """The common season of all series; None if they differ."""
    return seasons[0] if len(set(seasons)) == 1 else None


def frequencies(series: Sequence[Series]) -> list[str]:
    """The different intervals of the series."""
    return list(dict.fromkeys(each.timeline.frequency for each in series))


def default_horizon(series: Sequence[Series], seasons: Sequence[int]) -> int:
    """Two seasons, but at most a quarter of the longest series; with several seasons the smallest of these."""
    longest: dict[int, int] = {}
    for each, season in zip(series, seasons, strict=True):
        longest[season] = max(longest.get(season, 0), len(each))
    return min(max(1, min(SEASONS_AHEAD * max(season, 4), most // 4)) for season, most in longest.items())


def find_season(series: Sequence[np.ndarray]) -> tuple[int, float]:
    """The shortest lag at which the changes of the series repeat nearly as well as at the best lag; 1 for none."""
    chosen = series[:: max(1, len(series) // MOST_SERIES)]
    curves = [autocorrelation(values) for values in chosen]
    longest = max((len(curve) for curve in curves), default=0)
    if longest < 3:
        return 1, 0.0
    mean = mean_by_column(curves, longest)
    # A lag and its multiples, relative to all lags, because all lags of a smooth series are strong
    strength = np.array([0, 0, *(mean[lag::lag].mean() - mean[1:].mean() for lag in range(2, longest))])
    best = float(strength.max())
    if best < CLEAR:
        return 1, best
    first = int(np.flatnonzero(strength >= AS_GOOD * best)[0])
    season = first + int(strength[first : first + first // SLOW + 1].argmax())  # a slow wave rises over several lags
    return season, float(strength[season])


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


def value_text(value: float) -> str:
    """A value with four digits, as an integer from a thousand to a billion, or `missing`."""
    return "missing" if np.isnan(value) else f"{value:.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"

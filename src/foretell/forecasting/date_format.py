"""Date formats of files: detection, reading and writing of times.

A format has the codes of `strptime`, %q for a quarter, and %-d, %-m, %-H for numbers without a leading zero; NUMBER,
UNIX and UNIX_MS are formats too.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence

import numpy as np

from foretell.errors import DataError, UsageError

NUMBER, COMPACT = "number", "%Y%m%d"  # whole numbers, 20240531
UNIX, UNIX_MS = "unix", "unix_ms"  # seconds since 1970; milliseconds, as pandas writes times to JSON
DAYS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", COMPACT)  # ISO 8601; other orders
MONTHS = ("%Y-%m", "%YQ%q", "%G-W%V", "%GW%V")  # as in ISO 8601 and pandas; a week is its Monday
TIME = re.compile(r"\d[-\d./:TQWZ +]{3,40}")  # the characters of these formats
CLOCK = re.compile(r"([T ])\d{1,2}:\d\d(:\d\d)?(\.0{1,9})?(?:( ?)(?:Z|[+-]\d\d:?\d\d))?$")
OFFSET = re.compile(r"Z|[+-]\d\d:?\d\d(?!\d)")
COMPACT_DAY = re.compile(r"(1[5-9]|2[01])\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")
INTEGER = re.compile(r"[+-]?\d{1,18}")
MILLISECONDS = re.compile(r"-?\d{1,15}000|0")  # whole seconds
NUMBERS = {NUMBER: INTEGER, UNIX: INTEGER, UNIX_MS: MILLISECONDS}
EPOCH, SECOND, DAY = dt.datetime(1970, 1, 1), dt.timedelta(seconds=1), 86400
EXAMPLE, YEAR = dt.datetime(2024, 5, 31, 13, 45, 59), re.compile(r"(?<!%)%[YyGcx]")


def read_time(text: str, date_format: str) -> dt.datetime:
    """A time by the local clock, in whole seconds. Raises ValueError for another format, and for 30 February."""
    codes = date_format.replace("%-", "%")
    if "%q" in codes:
        quarter = next(each for each in "4321" if each == "1" or fits(text, codes.replace("%q", each)))
        return read_time(text, codes.replace("%q", quarter)).replace(month=3 * int(quarter) - 2)
    if "%V" in codes and "%u" not in codes:
        text, codes = f"{text} 1", f"{codes} %u"
    time = dt.datetime.strptime(text, codes).replace(tzinfo=None)
    if time.microsecond or (text.isdecimal() and time.strftime(codes) != text):  # digits alone need their zeros
        raise ValueError
    return time


def time_text(time: dt.datetime, date_format: str, local: str) -> str:
    """A time in a date format; `local` is the text of %z."""
    codes = date_format.replace("%q", str((time.month + 2) // 3)).replace("%Y", f"{time.year:04}")
    return time.strftime(codes.replace("%z", local))


def write_time(seconds: int, date_format: str, local: str) -> str:
    """The inverse of `read_times` for one time."""
    if date_format in NUMBERS:
        return str(1000 * seconds if date_format == UNIX_MS else seconds)
    try:
        return time_text(EPOCH + seconds * SECOND, date_format, local)
    except OverflowError:
        raise DataError("a time after the year 9999 cannot be written; forecast fewer values") from None


def offset_text(text: str, date_format: str) -> str:
    """The offset from UTC in a time."""
    return OFFSET.findall(text)[-1] if "%z" in date_format else ""


def fits(text: str, date_format: str, *, exactly: bool = False) -> bool:
    """True if a format reads a text. exactly: and would write it so, with the same zeros."""
    if date_format in NUMBERS:
        return NUMBERS[date_format].fullmatch(text) is not None
    try:
        time = read_time(text, date_format)
    except ValueError:
        return False
    return not exactly or text == time_text(time, date_format, offset_text(text, date_format))


def candidates(text: str) -> list[str]:
    """The possible date formats of a time."""
    if not TIME.fullmatch(text):
        return []
    tried = (*DAYS, *MONTHS)
    if (clock := CLOCK.search(text)) is not None:
        separator, seconds, fraction, space = clock.groups()
        rest = f":%M{':%S' if seconds else ''}{fraction or ''}{'' if space is None else space + '%z'}"
        tried = tuple(f"{day}{separator}{hour}{rest}" for hour in ("%H", "%-H") for day in DAYS)
    loose = (each.replace("%m", "%-m").replace("%d", "%-d") for each in tried if COMPACT not in each)
    return [each for each in dict.fromkeys((*tried, *loose)) if fits(text, each, exactly=True)]


def is_time(text: str, known: str | None = None) -> bool:
    """True for a date, with or without a time of day, that can be found or has a known format; not for a number."""
    if known is not None and known not in NUMBERS and fits(text, known):
        return True
    return INTEGER.fullmatch(text) is None and bool(candidates(text))


def is_compact(text: str) -> bool:
    """True for a date written as 20240531."""
    return COMPACT_DAY.fullmatch(text) is not None


def check_codes(date_format: str) -> None:
    """Refuse a format that does not read what it writes, and one without a year or with half of the half days."""
    try:
        if ("%p" in date_format) != ("%I" in date_format.replace("%-", "%")):
            raise ValueError("%I and %p, for AM or PM, need each other")
        text = time_text(EXAMPLE, date_format, "+00:00")
        if not YEAR.search(date_format) or time_text(read_time(text, date_format), date_format, "+00:00") != text:
            raise ValueError("it does not name a date")
    except (ValueError, re.error) as error:
        others = f"%q for a quarter, {', '.join(NUMBERS)}"
        raise UsageError(f"--date-format '{date_format}': {error}; use strptime's codes, {others}") from None


def choose_date_format(times: dict[str, str], given: str | None = None, remembered: str | None = None) -> str:
    """The format of all times, which are given with their places. `given` must fit; `remembered` resolves ambiguity.

    Raises DataError for times in several formats, and for those that can be read in two ways.
    """
    texts = list(times)
    if given is not None and given not in NUMBERS:
        check_codes(given)
    for known in filter(None, (given, remembered)):
        odd = next((text for text in texts if not fits(text, known)), None)
        if odd is None:
            return known
        if known == given:
            raise DataError(f"{times[odd]}: '{odd[:40]}' is not a time in the format {known} of --date-format")
    if all(INTEGER.fullmatch(text) for text in texts):
        if all(map(is_compact, texts)):
            return COMPACT
        is_recent = 10**11 <= max(abs(int(text)) for text in texts) < 10**14  # 1973 to 5138
        return UNIX_MS if is_recent and all(map(MILLISECONDS.fullmatch, texts)) else NUMBER
    tried = candidates(texts[0])
    if not tried:
        raise DataError(
            f"{times[texts[0]]}: '{texts[0][:40]}' is not a time; write whole numbers, or dates such as "
            "2024-05-31 13:00:00, or name their format with strptime's codes: --date-format '%d %b %Y'"
        )
    odds = {each: next((text for text in texts if not fits(text, each, exactly=True)), None) for each in tried}
    fitting = [each for each, odd in odds.items() if odd is None]
    if fitting:
        check_one_reading(texts, fitting, times)
        return fitting[0]
    best, odd = max(odds.items(), key=lambda each: texts.index(each[1] or ""))
    raise DataError(
        f"{times[odd or '']}: '{(odd or '')[:40]}' is not in the format of '{texts[0]}' ({best}), or does not exist; "
        "write all times in one format"
    )


def check_one_reading(texts: list[str], fitting: list[str], times: dict[str, str]) -> None:
    """Refuse formats that read the times as different dates."""
    readings = {each: read_times(texts, each, times)[0] for each in fitting}
    first = readings[fitting[0]]
    for other, seconds in readings.items():
        odd = np.flatnonzero(seconds != first)
        if len(odd):
            text = texts[odd[0]]
            dates = " or ".join(str(each[odd[0]].astype("datetime64[s]"))[:10] for each in (first, seconds))
            raise DataError(
                f"{times[text]}: '{text}' can be {dates}; give --date-format {fitting[0]} or --date-format {other}"
            )


def read_times(texts: Sequence[str], date_format: str, name: str | dict[str, str]) -> tuple[np.ndarray, str]:
    """Times in seconds since 1970-01-01 by the local clock, and the local clock's offset from UTC as text.

    name: the place of all times, or of each, for errors.
    If offsets and the time of day vary, all times are converted to the last offset. Numbers are not changed.
    """
    if date_format in NUMBERS:
        return np.array([int(text) for text in texts], dtype=np.int64) // (1000 if date_format == UNIX_MS else 1), ""
    seconds = np.zeros(len(texts), dtype=np.int64)
    for index, text in enumerate(texts):
        try:
            seconds[index] = (read_time(text, date_format) - EPOCH) // SECOND
        except ValueError:
            where = name if isinstance(name, str) else name[text]
            raise DataError(f"{where}: '{text[:40]}' is not a time in the format {date_format}") from None
    zones = [offset_text(text, date_format) for text in texts]
    if len(set(zones)) == 1:
        return seconds, zones[0]
    offsets = np.array([offset_seconds(zone) for zone in zones])
    last = int(np.argmax(seconds - offsets))
    if len(set((seconds % DAY).tolist())) > 1:
        seconds = seconds - offsets + offsets[last]
    return seconds, zones[last]


def offset_seconds(zone: str) -> int:
    """The seconds of an offset such as +02:00; 0 for Z."""
    if zone in ("", "Z", "z"):
        return 0
    return (1 if zone[0] == "+" else -1) * (3600 * int(zone[1:3]) + 60 * int(zone[-2:]))


def zone_time(seconds: int, local: str, zone: dt.tzinfo, *, keeps_clock: bool) -> tuple[int, str]:
    """The local time in a zone and its offset as text, of a time with the offset `local`.

    keeps_clock: the clocks of the zone show this time, with another offset if necessary.
    """
    instant = find_instant(seconds, zone) if keeps_clock else seconds - offset_seconds(local)
    moment = zone_moment(instant, zone)
    return instant + clock_offset(instant, zone), str(moment)[len("2024-05-31 13:00:00") :]


def find_instant(clock: int, zone: dt.tzinfo) -> int:
    """The instant at which clocks of a zone show a time: the first of two, or as if clocks had not skipped it."""
    before, after = (clock_offset(clock + day, zone) for day in (-DAY, DAY))
    shown = (offset for offset in (before, after) if clock_offset(clock - offset, zone) == offset)
    return clock - next(shown, before)


def clock_offset(instant: int, zone: dt.tzinfo) -> int:
    return round((zone_moment(instant, zone).utcoffset() or dt.timedelta()).total_seconds())


def zone_moment(instant: int, zone: dt.tzinfo) -> dt.datetime:
    return (dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(seconds=instant)).astimezone(zone)


def has_clock(date_format: str) -> bool:
    """True if times have a time of day."""
    return "H" in date_format or "I" in date_format

"""Date formats of files: detection, reading and writing of times.

A format is written as for `strptime`, with %q for a quarter and %-d for a number without a leading zero; NUMBER, UNIX
and UNIX_MS are formats too.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from functools import cache

import numpy as np

from foretell.errors import DataError, UsageError

NUMBER, COMPACT = "number", "%Y%m%d"  # whole numbers, 20240531
UNIX, UNIX_MS = "unix", "unix_ms"  # seconds since 1970; milliseconds, as pandas writes times to JSON
DAYS = (  # candidate formats, each combined with the first time's form of the time of day
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", COMPACT),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
MONTHS = (
    *("%Y-%m", "%Y/%m", "%m/%Y", "%m.%Y", "%b %Y", "%B %Y", "%b-%Y", "%b-%y", "%Y %b"),
    *("%YQ%q", "%Y-Q%q", "%Y Q%q", "Q%q %Y", "Q%q-%Y", "%qQ%Y", "%qQ%y", "%G-W%V", "%GW%V"),
)
NAMES = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November")
MONTH_NAMES = (*NAMES, "December")
SHORT_NAMES = tuple(name[:3] for name in MONTH_NAMES)
CODES = {
    "%Y": r"(?P<Y>\d{4})",
    "%y": r"(?P<y>\d{2})",
    "%m": r"(?P<m>0[1-9]|1[0-2])",
    "%-m": r"(?P<m>1[0-2]|[1-9])",
    "%d": r"(?P<d>0[1-9]|[12]\d|3[01])",
    "%-d": r"(?P<d>[12]\d|3[01]|[1-9])",
    "%b": rf"(?P<b>{'|'.join(SHORT_NAMES)})",
    "%B": rf"(?P<b>{'|'.join(MONTH_NAMES)})",
    "%q": r"(?P<q>[1-4])",
    "%G": r"(?P<G>\d{4})",
    "%V": r"(?P<V>0[1-9]|[1-4]\d|5[0-3])",
    "%H": r"(?P<H>[01]\d|2[0-3])",
    "%-H": r"(?P<H>1\d|2[0-3]|\d)",
    "%I": r"(?P<I>0[1-9]|1[0-2])",
    "%-I": r"(?P<I>1[0-2]|[1-9])",
    "%p": r"(?P<p>[AP]M)",
    "%M": r"(?P<M>[0-5]\d)",
    "%S": r"(?P<S>[0-5]\d)",
    "%z": r"(?P<z>Z|[+-]\d\d:?\d\d)",
}
CODE = re.compile(r"(%-?[A-Za-z])")
WHOLE = re.compile(r"[+-]?\d{1,18}")
MILLISECONDS = re.compile(r"-?\d{1,15}000|0")  # whole seconds
CLOCK = re.compile(r"([T ])(\d{1,2}):\d\d(:\d\d)?(\.0{1,9})?( ?[AaPp][Mm])?( ?(?:Z|[+-]\d\d:?\d\d))?$")
DAY = 86400  # seconds
PIVOT = 69  # two digits from here on are years of the 20th century, as in POSIX


@cache
def pattern_of(date_format: str) -> re.Pattern[str]:
    """The regular expression of a date format; UsageError for a code that is not in CODES."""
    if date_format == UNIX_MS:
        return MILLISECONDS
    if date_format in (NUMBER, UNIX):
        return WHOLE
    parts = CODE.split(date_format)
    unknown = [part for part in parts[1::2] if part not in CODES]
    if ("%p" in parts) != ("%I" in parts or "%-I" in parts):
        raise UsageError(f"--date-format '{date_format}': %I and %p, for AM or PM, need each other")
    if unknown or len(parts) == 1 or len(set(parts[1::2])) < len(parts[1::2]):
        what = f"{unknown[0]} is not known" if unknown else "it has no code, or one twice"
        raise UsageError(f"--date-format '{date_format}': {what}; use {' '.join(CODES)}, unix, unix_ms or number")
    return re.compile("".join(CODES[part] if part in CODES else re.escape(part) for part in parts), re.IGNORECASE)


def candidates(text: str) -> list[str]:
    """The possible date formats of a time."""
    clock = CLOCK.search(text)
    if clock is None:
        tried = (*DAYS, *MONTHS)
    else:
        separator, hour, seconds, fraction, half, zone = clock.groups()
        suffix = (
            f":%M{':%S' if seconds else ''}{fraction or ''}{'' if half is None else half[:-2] + '%p'}"
            f"{'' if zone is None else zone[: -len(zone.strip())] + '%z'}"
        )
        code = "I" if half else "H"
        hours = (f"%{code}", f"%-{code}") if len(hour) == 2 else (f"%-{code}",)
        tried = tuple(f"{day}{separator}{each}{suffix}" for each in hours for day in DAYS)
    loose = tuple(each.replace("%m", "%-m").replace("%d", "%-d") for each in tried if COMPACT not in each)
    return [each for each in dict.fromkeys((*tried, *loose)) if pattern_of(each).fullmatch(text)]


def is_time(text: str) -> bool:
    """True for a date, with or without a time of day; not for a number."""
    return WHOLE.fullmatch(text) is None and bool(candidates(text))


def is_compact(text: str) -> bool:
    """True for a date written as 20240531."""
    return pattern_of(COMPACT).fullmatch(text) is not None and "1500" <= text[:4] < "2200"


def choose_date_format(times: dict[str, str], given: str | None = None, remembered: str | None = None) -> str:
    """The format of all times, which are given with their places. `given` must fit; `remembered` resolves ambiguity.

    Raises DataError for times in several formats, and for those that can be read in two ways.
    """
    texts = list(times)
    for known in filter(None, (given, remembered)):
        odd = next((text for text in texts if not pattern_of(known).fullmatch(text)), None)
        if odd is None:
            return known
        if known == given:
            raise DataError(f"{times[odd]}: '{odd[:40]}' is not a time in the format {known} of --date-format")
    if all(WHOLE.fullmatch(text) for text in texts):
        if all(map(is_compact, texts)):
            return COMPACT
        is_recent = 10**11 <= max(abs(int(text)) for text in texts) < 10**14  # 1973 to 5138
        return UNIX_MS if is_recent and all(map(MILLISECONDS.fullmatch, texts)) else NUMBER
    tried = candidates(texts[0])
    fitting = [each for each in tried if all(map(pattern_of(each).fullmatch, texts))]
    if fitting:
        check_one_reading(texts, fitting, times)
        return fitting[0]
    if not tried:
        raise DataError(
            f"{times[texts[0]]}: '{texts[0][:40]}' is not a time; write whole numbers, or dates such as "
            "2024-05-31 13:00:00, or name their format: --date-format %d.%m.%Y"
        )
    odds = {each: next(text for text in texts if not pattern_of(each).fullmatch(text)) for each in tried}
    best = max(tried, key=lambda each: texts.index(odds[each]))
    months = ", with English names of months" * ("%b" in best or "%B" in best)
    raise DataError(
        f"{times[odds[best]]}: '{odds[best][:40]}' is not in the format of '{texts[0]}' ({best}); write all times in "
        f"one format{months}"
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
    if date_format in (NUMBER, UNIX):
        return np.array([int(text) for text in texts], dtype=np.int64), ""
    if date_format == UNIX_MS:
        return np.array([int(text) // 1000 for text in texts], dtype=np.int64), ""
    pattern, parts = pattern_of(date_format), []
    for text in texts:
        match = pattern.fullmatch(text)
        if match is None:
            raise DataError(f"{name}: '{text[:40]}' is not a time in the format {date_format}")
        parts.append(match.groupdict())
    try:
        seconds = np.array([iso_time(each) for each in parts], dtype="datetime64[s]").astype(np.int64)
    except ValueError as error:
        odd = next(text for text, each in zip(texts, parts, strict=True) if not exists(each))
        where = name if isinstance(name, str) else name[odd]
        raise DataError(f"{where}: '{odd[:40]}' does not exist ({error})") from None
    zones = [each.get("z") or "" for each in parts]
    if len(set(zones)) > 1:
        offsets = np.array([offset_seconds(zone) for zone in zones])
        last = int(np.argmax(seconds - offsets))
        if len(set((seconds % DAY).tolist())) > 1:
            seconds = seconds - offsets + offsets[last]
        return seconds, zones[last]
    return seconds, zones[0]


def iso_time(parts: dict[str, str]) -> str:
    """The groups of a date format's pattern as an ISO time; a week is its Monday."""
    if "V" in parts:
        return f"{dt.date.fromisocalendar(int(parts['G']), int(parts['V']), 1)}T00:00:00"
    year = parts.get("Y") or f"{'19' if int(parts['y']) >= PIVOT else '20'}{parts['y']}"
    if "b" in parts:
        month = SHORT_NAMES.index(parts["b"][:3].capitalize()) + 1
    else:
        month = 3 * int(parts["q"]) - 2 if "q" in parts else int(parts.get("m", 1))
    if "I" in parts:  # 12 AM is midnight, 12 PM noon
        parts = {**parts, "H": str(int(parts["I"]) % 12 + (12 if parts["p"].upper() == "PM" else 0))}
    clock = ":".join(f"{int(parts.get(part, 0)):02}" for part in "HMS")
    return f"{year}-{month:02}-{int(parts.get('d', 1)):02}T{clock}"


def exists(parts: dict[str, str]) -> bool:
    """False for 30 February, and for week 53 of a shorter year."""
    try:
        return np.datetime64(iso_time(parts)) is not None
    except ValueError:
        return False


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


def write_time(seconds: int, date_format: str, local: str) -> str:
    """A time in a date format; `local` is the text of %z."""
    if date_format in (UNIX, UNIX_MS):
        return str(seconds if date_format == UNIX else 1000 * seconds)
    date, clock = str(np.datetime64(seconds, "s")).split("T")
    year, month, day = date.rsplit("-", 2)
    hour, minute, second = clock.split(":")
    week = dt.date.fromisoformat(date).isocalendar() if "%V" in date_format else (0, 0)
    values = {
        "%Y": year,
        "%y": year[-2:],
        "%m": month,
        "%-m": month.lstrip("0"),
        "%d": day,
        "%-d": day.lstrip("0"),
        "%b": SHORT_NAMES[int(month) - 1],
        "%B": MONTH_NAMES[int(month) - 1],
        "%q": str((int(month) + 2) // 3),
        "%G": str(week[0]),
        "%V": f"{week[1]:02}",
        "%H": hour,
        "%-H": str(int(hour)),
        "%I": f"{(int(hour) - 1) % 12 + 1:02}",
        "%-I": str((int(hour) - 1) % 12 + 1),
        "%p": "AM" if int(hour) < 12 else "PM",
        "%M": minute,
        "%S": second,
        "%z": local,
    }
    return CODE.sub(lambda code: values[code[0]], date_format)


def has_clock(date_format: str) -> bool:
    """True if times have a time of day."""
    return "H" in date_format or "I" in date_format

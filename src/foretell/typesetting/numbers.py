"""Numbers as text for people."""

from __future__ import annotations

import math
from numbers import Integral

UNITS_OF_TIME = ((86_400 * 365, "years"), (86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


def format_number(value: float, digits: int = 4) -> str:
    """A number with fixed decimals; scientific notation if it would round to 0, and from a million on."""
    if isinstance(value, Integral):
        return str(value)
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    hidden = value != 0 and abs(value) < 0.5 * 10.0**-digits
    return f"{value:.1e}" if hidden or abs(value) >= 1e6 else f"{value + 0.0:.{digits}f}"


def format_significant(value: float, digits: int) -> str:
    """A number with this many significant digits, and with an exponent only if it is very large or small."""
    import numpy as np

    text = f"{value:.{digits}g}"
    return np.format_float_positional(float(text), trim="-") if value == 0 or 1e-6 <= abs(value) < 1e16 else text


def round_number(value: float) -> str:
    """A number with three digits or none after the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def signed(value: float, digits: int = 4) -> str:
    """A number with its sign, `+0.5000` or `−0.5000`; without a sign if it rounds to zero."""
    written = f"{value:+.{digits}f}"
    return written[1:] if float(written) == 0 else written.replace("-", "−")


def percent(probability: float) -> str:
    """`41.2%`; below 0.1% with two significant digits, `0.0031%`."""
    return f"{probability:.1%}" if probability >= 0.001 or probability == 0 else f"{100 * probability:.2g}%"


def whole_percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "less than 1%"


def format_bytes(count: float) -> str:
    """A number of bytes for people: 1.5 GB."""
    value, units = float(count), ["bytes", "kB", "MB", "GB", "TB", "PB", "EB", "ZB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:,.0f} {units[0]}" if value >= 100 or units[0] == "bytes" else f"{value:.1f} {units[0]}"


def format_duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_seconds(seconds: float) -> str:
    """A time in the unit that suits it: 3.4 hours."""
    size, unit = next((entry for entry in UNITS_OF_TIME if seconds >= 1.5 * entry[0]), UNITS_OF_TIME[-1])
    return f"{round_number(seconds / size)} {unit}"

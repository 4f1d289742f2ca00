"""Formatting of tokens, probabilities and signed numbers for output."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len

LONGEST = 24  # columns of a token in quotes
GAP = "  "


def quoted(text: str) -> str:
    """A token in quotes, `' the'`, with control characters escaped and a long one shortened."""
    shown = repr(text)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 2] + "…" + shown[-1]


def ending(text: str, width: int = 40) -> str:
    """The end of a text in quotes, at most `width` columns wide: `'…of the'`."""
    kept = text
    while cell_len(repr(kept)) > width - (kept != text):
        kept = kept[1:]
    return repr(kept) if kept == text else f"{repr(kept)[0]}…{repr(kept)[1:]}"


def percent(probability: float) -> str:
    """`41.2%`; a share under 0.1% has two significant digits, `0.0031%`."""
    return f"{probability:.1%}" if probability >= 0.001 or probability == 0 else f"{100 * probability:.2g}%"


def signed(value: float, digits: int = 4) -> str:
    """A number with its sign, `+0.5000` or `−0.5000`; one that rounds to zero has none."""
    written = f"{value:+.{digits}f}"
    return written[1:] if float(written) == 0 else written.replace("-", "−")


def fitting(parts: Iterable[str], width: int) -> str:
    """As many parts, joined on one line, as fit into `width` columns, but at least the first."""
    line = ""
    for part in parts:
        longer = f"{line}{GAP}{part}" if line else part
        if line and cell_len(longer) > width:
            break
        line = longer
    return line

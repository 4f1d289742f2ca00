"""How tokens and probabilities are written for people, wherever something is explained."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len

LONGEST = 24  # columns of a token in quotes
GAP = "  "


def quoted(text: str) -> str:
    """' the': a token in quotes, with what would break a line written out; a long one is cut."""
    shown = repr(text)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 2] + "…" + shown[-1]


def ending(text: str, width: int = 40) -> str:
    """The end of a text in quotes, no wider than so many columns: '…of the'."""
    kept = text
    while cell_len(repr(kept)) > width - (kept != text):
        kept = kept[1:]
    return repr(kept) if kept == text else f"{repr(kept)[0]}…{repr(kept)[1:]}"


def percent(probability: float) -> str:
    """`41.2%`; what is too small to show so has two digits, `0.0031%`."""
    return f"{probability:.1%}" if probability >= 0.001 or probability == 0 else f"{100 * probability:.2g}%"


def signed(value: float, digits: int = 4) -> str:
    """A number that always has its sign, `+0.5000` or `−0.5000`; what rounds to nothing has none."""
    written = f"{value:+.{digits}f}"
    return written[1:] if float(written) == 0 else written.replace("-", "−")


def fitting(parts: Iterable[str], width: int) -> str:
    """As many of the parts, side by side, as fit into so many columns; the first is always there."""
    line = ""
    for part in parts:
        longer = f"{line}{GAP}{part}" if line else part
        if line and cell_len(longer) > width:
            break
        line = longer
    return line

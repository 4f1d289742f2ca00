"""Numbers as files write them: decimal point or comma, separators of thousands, and how results are written."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

MINUS = "\u2212"  # of typeset numbers
PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
GROUPED = {
    ",": re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?"),
    ".": re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"),
}
SPACE = "[ '’\u00a0\u2009\u202f]"  # separators of thousands that are never decimal marks
SPACED = re.compile(rf"[+-]?[1-9]\d{{0,2}}({SPACE}\d{{3}})+([.,]\d+)?")
THOUSANDS = re.compile(r"[+-]?(0|[1-9]\d{0,2}(\.\d{3})*)")
MARKS = {".": ",", ",": "."}  # a decimal mark, and the other one
LARGEST = 1e150  # to compute with: its square is still finite


def plain_number(text: str, decimal: str = ".") -> str | None:
    """A number with a decimal point and without separators of thousands; None for other texts."""
    text = text.replace(MINUS, "-")
    if SPACED.fullmatch(text):
        text = re.sub(SPACE, "", text)
    elif GROUPED[decimal].fullmatch(text):
        text = text.replace(MARKS[decimal], "")
    if decimal == ",":
        text = text.replace(".", "'").replace(",", ".")  # a point that is left makes it no number
    return text if PLAIN.fullmatch(text) else None


def is_number(text: str) -> bool:
    """True for a number with either decimal mark."""
    return any(plain_number(text, mark) is not None for mark in MARKS)


def proves(text: str, mark: str) -> bool:
    """True if a number can be read with this decimal mark and with no other."""
    return plain_number(text, mark) is not None and plain_number(text, MARKS[mark]) is None


def may_group(texts: Sequence[str], *, also_alone: bool = False) -> str | None:
    """The first number with a point, if points may separate thousands in all of these numbers; else None.

    Then each number has three digits after a point, or no point and at most three digits, and both kinds occur.
    also_alone: the first kind is enough.
    """
    points = [text for text in texts if "." in text]
    if not points or not all(THOUSANDS.fullmatch(text.replace(MINUS, "-")) for text in texts):
        return None
    return points[0] if also_alone or len(points) < len(texts) else None


def two_readings(text: str) -> str:
    """The two readings of a number, and the option that chooses one."""
    mark = "," if "," in text else "."
    small, large = text[:40].replace(mark, "."), text[:40].replace(mark, "")
    return (
        f"'{text[:40]}' can be {small} or {large}; give --decimal {mark} for {small} or --decimal {MARKS[mark]} for "
        f"{large}"
    )


def unit_of(text: str) -> str | None:
    """The percent or currency sign of a text with digits, or the word after a number."""
    number, _, word = text.rpartition(" ")
    if word.isalpha() and is_number(number):
        return word
    signs = [letter for letter in text if letter == "%" or unicodedata.category(letter) == "Sc"]
    return signs[0] if signs and any(map(str.isdigit, text)) else None

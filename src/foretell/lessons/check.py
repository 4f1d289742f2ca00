"""A figure that a text prints, what comes out here, and whether the two agree."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

# The texts computed in float32 and rounded what they got. A value that lies nearer than that to the border between two
# printed figures can be rounded the other way here; 1e-7 is one unit in float32's last place for numbers of size 1
FLOAT32_HAIR = 1e-7


@dataclass(frozen=True)
class Check:
    """One comparison. `tolerance` is None where the two must be equal and are no numbers."""

    what: str
    expected: Any
    got: Any
    tolerance: float | None
    passed: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinity, or what is not a number, is written as text, since JSON has neither."""
        return {name: plain(value) for name, value in asdict(self).items()}

    def difference(self) -> str:
        """Expected and got as one line, of arrays the entry that is furthest off."""
        expected, got = np.asarray(self.expected), np.asarray(self.got)
        if expected.ndim == 0 or expected.shape != got.shape:
            return f"{self.what}: expected {self.expected}, got {self.got}"
        apart = ~(expected == got) if self.tolerance is None else np.nan_to_num(distances(expected, got), nan=np.inf)
        place = np.unravel_index(int(np.argmax(apart)), expected.shape)
        where = ", ".join(map(str, place))
        return f"{self.what} [{where}]: expected {expected[place]}, got {got[place]}"


def printed(what: str, expected: ArrayLike, got: ArrayLike, digits: int = 4) -> Check:
    """Does `got` round to the printed figures? They have `digits` digits after the point."""
    return near(what, expected, got, 0.5 * 10.0**-digits + FLOAT32_HAIR)


def near(what: str, expected: ArrayLike, got: ArrayLike, tolerance: float) -> Check:
    """Are all numbers within `tolerance` of the expected ones, infinities in the same places, shapes the same?"""
    first, second = np.asarray(expected), np.asarray(got)
    passed = first.shape == second.shape and bool((distances(first, second) <= tolerance).all())
    return Check(what, expected, got, tolerance, passed)


def same(what: str, expected: Any, got: Any) -> Check:
    """Are the two equal?"""
    return Check(what, expected, got, None, bool(np.array_equal(np.asarray(expected), np.asarray(got))))


def below(what: str, limit: float, got: float) -> Check:
    """Is the number below the limit?"""
    return Check(what, f"below {limit}", got, None, got < limit)


def above(what: str, limit: float, got: float) -> Check:
    """Is the number above the limit?"""
    return Check(what, f"above {limit}", got, None, got > limit)


def distances(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    """How far apart two arrays of one shape are, entry by entry; equal infinities are not apart."""
    with np.errstate(invalid="ignore"):
        return np.where(expected == got, 0.0, np.abs(expected.astype(float) - got.astype(float)))


def plain(value: Any) -> Any:
    """Numbers, text and lists of them, as JSON has them."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

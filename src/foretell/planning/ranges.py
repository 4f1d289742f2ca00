"""A range: what a planned figure is at least and at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """A figure between two bounds."""

    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        """A figure that is known."""
        return cls(value, value)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Range:
        return Range(self.low * factor, self.high * factor)

    def __truediv__(self, divisor: float) -> Range:
        return self * (1 / divisor)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

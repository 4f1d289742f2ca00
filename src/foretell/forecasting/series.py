"""A series: its name, its values and their times."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretell.forecasting.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Series:
    """Values (T,) in float64, NaN where one is missing, and the times they belong to."""

    unique_id: str
    values: np.ndarray
    timeline: Timeline

    def __len__(self) -> int:
        return len(self.values)

    def until(self, end: int) -> Series:
        """The first `end` values."""
        return Series(self.unique_id, self.values[:end], self.timeline)

    def tail(self, count: int) -> Series:
        """The last `count` values."""
        skipped = max(0, len(self.values) - count)
        return Series(self.unique_id, self.values[skipped:], self.timeline.moved(skipped))


def fingerprint(series: Sequence[Series]) -> str:
    """A hash of names and values, so that a resumed training can tell other data."""
    digest = hashlib.sha256()
    for each in series:
        digest.update(repr((each.unique_id, len(each))).encode())
        digest.update(np.ascontiguousarray(each.values).data)
    return digest.hexdigest()[:16]

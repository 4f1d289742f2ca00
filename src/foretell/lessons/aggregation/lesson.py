"""The lesson on aggregation and forecasting."""

from __future__ import annotations

import numpy as np

from foretell.lessons.aggregation.page import make_page
from foretell.lessons.aggregation.values import (
    HORIZON,
    MASKED_SUMS,
    WEIGHTED_SUM,
    WINDOW,
    Everything,
    compute,
    series,
)
from foretell.lessons.check import Check, above, below, same
from foretell.lessons.lesson import Lesson
from foretell.typesetting.document import DocumentSection

SAME = 1e-12  # float64: the same sums, in rows of other lengths
MOVED = 1e-3


class Aggregation(Lesson):
    """A weighted sum, a masked one, positions, and a forecast."""

    def __init__(self, found: Everything | None = None):
        self.found = found or compute()

    def document(self) -> DocumentSection:
        return make_page(self.found)

    def checks(self) -> list[Check]:
        found = self.found
        return [
            same("wH", WEIGHTED_SUM, found.weighted_sum),
            same("the model's mask is lower triangular", np.tril(np.ones((3, 3), dtype=int)), found.mask),
            same("the mask times H", MASKED_SUMS, found.masked_sums),
            *(
                below(f"every context from 1 to {WINDOW} gives what the window gives, {kind} positions", SAME, apart)
                for kind, apart in found.prefixes.items()
            ),
            below("without positions, order is lost", SAME, found.reordered["none"]),
            above("fixed positions tell the order", MOVED, found.reordered["sinusoidal"]),
            above("learned positions tell the order", MOVED, found.reordered["learned"]),
            *(
                above(f"next number after a context of {length}", 0.9, probability)
                for length, probability in enumerate(found.sure, start=1)
                if length > 1  # one number does not say whether the wave rises or falls
            ),
            same("forecast", series(HORIZON, WINDOW), found.forecast),
        ]

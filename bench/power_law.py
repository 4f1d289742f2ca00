"""A power law y = c * x^a through measured points, by least squares in the logarithms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PowerLaw:
    """y = factor * x^exponent, and how well it describes the points it was fitted to.

    r_squared: the share of the variance of log y that the law explains; 1 where all y are equal and the fit is exact.
    largest_error: the largest relative difference of a point from the law.
    last: the exponent between the last two points, which differs from `exponent` where the curve is not a power law.
    """

    exponent: float
    factor: float
    r_squared: float
    largest_error: float
    last: float

    def at(self, x: float) -> float:
        """The law's value."""
        return self.factor * x**self.exponent


def fit_power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """The law with the least squared error in log y. At least two different x, all x and y above 0."""
    if len(xs) != len(ys) or len(set(xs)) < 2 or min(*xs, *ys) <= 0:
        raise ValueError("a power law needs two different x or more, as many y, and all of them above 0")
    log_xs, log_ys = [math.log(x) for x in xs], [math.log(y) for y in ys]
    line = statistics.linear_regression(log_xs, log_ys)
    errors = [log_y - (line.intercept + line.slope * log_x) for log_x, log_y in zip(log_xs, log_ys, strict=True)]
    unexplained, variation = sum(error**2 for error in errors), len(ys) * statistics.pvariance(log_ys)
    return PowerLaw(
        exponent=line.slope,
        factor=math.exp(line.intercept),
        r_squared=1 - unexplained / variation if variation > 0 else 1.0,
        largest_error=max(abs(math.expm1(error)) for error in errors),
        last=(log_ys[-1] - log_ys[-2]) / (log_xs[-1] - log_xs[-2]),
    )

"""Forecasts combined with a naive one: the share of the last season, or of the last value, that held-out values choose.

Combining forecasts lowers the error where their errors differ (Bates and Granger 1969, "The Combination of Forecasts").
With few values to learn from, such as two series of weeks, a repeated season is better than any model trained on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from foretell.config import Section
from foretell.forecasting.metrics import seasonal_naive

SHARES = np.linspace(0, 1, 11)
LEAST_GAIN = 0.02  # of the error: with less, a forecast stays the model's alone


class Combination(Section):
    """The share of a forecast that repeats the last `season` values."""

    season: int = Field(gt=0)
    share: float = Field(gt=0, le=1)
    error: float  # on held-out values, in standard deviations of the values before them
    model_error: float  # there, of the model alone

    def apply(self, history: np.ndarray, paths: np.ndarray) -> np.ndarray:
        """Paths (samples, H) moved at each step, so that their median is the combination and their spread stays."""
        repeated = seasonal_naive(history, self.season, paths.shape[1])
        return paths + self.share * (repeated - np.median(paths, 0))

    def describe(self) -> str:
        repeated = "the last value" if self.season == 1 else f"the last {self.season} values"
        return f"{1 - self.share:.0%} the model's, {self.share:.0%} {repeated} repeated"

    def describe_errors(self) -> str:
        return (
            f"error on held-out values {self.error:.3f} standard deviations, {self.model_error:.3f} of the model alone"
        )


@dataclass(frozen=True)
class HeldOut:
    """Held-out values (H,) after a history (T,), and the paths (samples, H) that were sampled for them."""

    history: np.ndarray
    actual: np.ndarray
    paths: np.ndarray
    spread: float  # the standard deviation of the values that the model read

    def errors(self, season: int) -> np.ndarray:
        """The mean absolute error, in standard deviations, with each of SHARES of the repeated season."""
        median, repeated = np.median(self.paths, 0), seasonal_naive(self.history, season, len(self.actual))
        points = median + SHARES[:, None] * (repeated - median)  # (shares, H)
        return np.nanmean(np.abs(self.actual - points), 1) / self.spread


def choose_combination(held_out: Sequence[HeldOut], season: int) -> Combination | None:
    """The combination with the smallest mean error; None where the model alone is about as good."""
    seasons = sorted({1, season})
    errors = np.stack([np.mean([each.errors(length) for each in held_out], 0) for length in seasons])
    row, column = np.unravel_index(errors.argmin(), errors.shape)
    alone, best = float(errors[0, 0]), float(errors[row, column])
    if best > (1 - LEAST_GAIN) * alone:
        return None
    share = round(float(SHARES[column]), 2)
    return Combination(season=seasons[row], share=share, error=best, model_error=alone)

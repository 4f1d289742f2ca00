"""Calibrated intervals: the widths of a model's intervals, changed so that they hold on values it was not trained on.

The score of a held-out value is its distance from the median of the paths, in units of the half-width of the paths'
own 80% interval on that side. The interval of a level extends from the median by a quantile of the scores, in the same
units (conformal prediction with scores scaled by the model's own uncertainty: Lei et al. 2018, "Distribution-Free
Predictive Inference for Regression", section 5.2; Romano et al. 2019, "Conformalized Quantile Regression"). Scores of
all steps and series are pooled. Intervals of all levels come from one list of scores, so they never cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from foretell.config import Section, make_section
from foretell.files import read_json, write_json
from foretell.forecasting.combination import Combination, HeldOut

INTERVALS = "intervals.json"  # in a saved model
BASE_LEVEL = 80.0  # percent; its bounds vary less from sample to sample than those further out
LEAST_WIDTH = 0.01  # of a half-width, in standard deviations of the context: paths that all agree have none
LEVELS = np.arange(101.0)

Bounds = tuple[np.ndarray, np.ndarray]


def interval_of(paths: np.ndarray, level: float) -> Bounds:
    """The bounds (H,), (H,) of `level` percent of the distribution that paths (samples, H) were drawn from.

    Quantiles at p (n + 1) of n samples: an interval between those holds `level` percent of further draws on average.
    Interpolating at p (n - 1), as numpy does by default, holds less: 72% of the draws for 80% and 20 samples.
    """
    outside = (1 - level / 100) / 2
    low, high = np.quantile(paths, (outside, 1 - outside), axis=0, method="weibull")
    return low, high


def half_widths(paths: np.ndarray, spread: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The median (H,) of paths, and the widths below and above it. spread: the standard deviation of the context."""
    median, (low, high) = np.median(paths, 0), interval_of(paths, BASE_LEVEL)
    least = LEAST_WIDTH * spread
    return median, np.maximum(median - low, least), np.maximum(high - median, least)


class Calibration(Section):
    """The choices of held-out values: a combination of forecasts, and the quantiles of their scores, 0 to 100%."""

    scores: tuple[float, ...] = Field(min_length=len(LEVELS), max_length=len(LEVELS))
    windows: int = Field(gt=0)  # stretches of series that the scores are from
    combination: Combination | None = None  # of the forecasts; None: the model's alone

    @model_validator(mode="after")
    def _check(self) -> Calibration:
        if self.scores[0] < 0 or list(self.scores) != sorted(self.scores):
            raise ValueError("scores must be at least 0, in ascending order")
        return self

    def interval(self, paths: np.ndarray, level: float, spread: float) -> Bounds:
        """The bounds (H,), (H,) of a level in percent around the median of paths (samples, H)."""
        median, below, above = half_widths(paths, spread)
        factor = float(np.interp(level, LEVELS, self.scores))
        return median - factor * below, median + factor * above


def scores_of(held_out: HeldOut) -> np.ndarray:
    """The scores of held-out values that are not missing."""
    median, below, above = half_widths(held_out.paths, held_out.spread)
    error = held_out.actual - median
    scores = np.abs(error) / np.where(error < 0, below, above)
    return scores[~np.isnan(scores)]


def calibrate(held_out: Sequence[HeldOut], combination: Combination | None = None) -> Calibration:
    """The calibration from held-out windows of combined forecasts, at least one of them with a value.

    Of n scores, the smallest that k = ceil((n + 1) level) of them do not exceed; the largest where k is above n.
    """
    scores = np.sort(np.concatenate([scores_of(each) for each in held_out]))
    assert len(scores), "windows without a known value are left out before"
    ranks = np.clip(np.ceil((len(scores) + 1) * LEVELS / 100).astype(int), 1, len(scores))
    quantiles = (0.0, *scores[ranks[1:] - 1].tolist())
    return Calibration(scores=quantiles, windows=len(held_out), combination=combination)


def save_calibration(directory: Path, calibration: Calibration) -> None:
    """Write the calibration into the directory of a saved model."""
    write_json(directory / INTERVALS, calibration.model_dump(mode="json", exclude_none=True))


def load_calibration(directory: Path) -> Calibration | None:
    """The calibration of a saved model; None if it has none."""
    path = directory / INTERVALS
    return make_section(Calibration, read_json(path), str(path)) if path.exists() else None

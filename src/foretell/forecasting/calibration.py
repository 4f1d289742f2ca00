"""Choices made with held-out windows: a combination with a naive forecast, and the widths of intervals.

Combining forecasts lowers the error if their errors differ (Bates and Granger 1969, "The Combination of Forecasts").

Intervals are adjusted to have the right coverage for values that the model was not trained on. The score of a held-out
value is its distance from the median of the paths, divided by a width: the half-width of the paths' own 80% interval on
that side, or the size of recent changes, which adapts to calm and turbulent years of a price.
The interval of a level extends from the median by a quantile of the scores, in the same units (conformal
prediction with scaled scores: Lei et al. 2018, "Distribution-Free Predictive Inference
for Regression", section 5.2; Romano et al. 2019, "Conformalized Quantile Regression"). Scores of all steps and series
are pooled. Intervals of all levels come from one list of scores, so they never cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from foretell.config.model import Size
from foretell.config.section import Section, make_section
from foretell.forecasting.metrics import seasonal_naive
from foretell.forecasting.series import Window
from foretell.storage.files import read_json

SHARES = np.linspace(0, 1, 11)
LEAST_GAIN = 0.02  # relative gain in error; with less, only the model's forecast is used
FEWEST_WINDOWS = 8  # windows needed to choose a combination or a unit


class Combination(Section):
    """A combination of the model's forecast with a repetition of the last `season` values."""

    season: Size | None = None  # None: the season of each series
    share: float = Field(gt=0, le=1)
    error: float  # on held-out values, in standard deviations of the values before them
    model_error: float  # the same without the combination

    def apply(self, history: np.ndarray, paths: np.ndarray, season: int = 1) -> np.ndarray:
        """Shift paths (samples, H) at each step, so that their median is the combination; the spread does not change.

        season: the season of the history.
        """
        repeated = seasonal_naive(history, self.season or season, paths.shape[1])
        return paths + self.share * (repeated - np.median(paths, 0))

    def describe(self) -> str:
        counted = "season" if self.season is None else f"{self.season} values"
        repeated = "the last value" if self.season == 1 else f"the last {counted}"
        return f"{1 - self.share:.0%} the model's, {self.share:.0%} {repeated} repeated"


@dataclass(frozen=True, kw_only=True)
class HeldOut(Window):
    """A held-out window and the sampled paths (samples, H) of its values."""

    paths: np.ndarray
    spread: float  # the standard deviation of the values that the model read

    def errors(self, season: int | None) -> np.ndarray:
        """The mean absolute error, in standard deviations, for each of SHARES of the repeated season."""
        median = np.median(self.paths, 0)
        repeated = seasonal_naive(self.history, season or self.season, len(self.actual))
        points = median + SHARES[:, None] * (repeated - median)  # (shares, H)
        return np.nanmean(np.abs(self.actual - points), 1) / self.spread

    def combined(self, combination: Combination) -> HeldOut:
        """Replace the window's forecasts by combined ones."""
        return replace(self, paths=combination.apply(self.history, self.paths, self.season))


def choose_combination(held_out: Sequence[HeldOut], season: int | None) -> Combination | None:
    """The combination with the smallest mean error; None if the model alone is about as good, or with few windows.

    season: None for the season of each series.
    """
    if len(held_out) < FEWEST_WINDOWS:
        return None
    seasons = list(dict.fromkeys((1, season)))
    errors = np.stack([np.mean([each.errors(length) for each in held_out], 0) for length in seasons])
    row, column = np.unravel_index(errors.argmin(), errors.shape)
    alone, best = float(errors[0, 0]), float(errors[row, column])
    if best > (1 - LEAST_GAIN) * alone:
        return None
    share = round(float(SHARES[column]), 2)
    return Combination(season=seasons[row], share=share, error=best, model_error=alone)


INTERVALS = "intervals.json"  # in a saved model
BASE_LEVEL = 80.0  # percent; bounds further out vary more between samples
LEAST_WIDTH = 0.01  # minimum half-width in standard deviations of the context, for paths that are all equal
LEVELS = np.arange(101.0)
LEAST_UNIT_GAIN = 0.05  # relative gain in interval score; with less, the unit is the paths' own widths
PRIOR_WINDOWS = 4  # the weight, in windows, of the intervals of the start model

Bounds = tuple[np.ndarray, np.ndarray]


def interval_of(paths: np.ndarray, level: float) -> Bounds:
    """The bounds (H,), (H,) of `level` percent of the distribution from which paths (samples, H) were drawn.

    They are quantiles at p (n + 1) of n samples, which contain `level` percent of further draws on average. numpy's
    default, p (n - 1), contains less: 72% of the draws for 80% and 20 samples.
    """
    outside = (1 - level / 100) / 2
    low, high = np.quantile(paths, (outside, 1 - outside), axis=0, method="weibull")
    return low, high


Unit = Literal["paths", "changes"]  # unit of scores: the width of the paths' interval, or the size of recent changes
DECAY = 0.94  # decay of squared changes per step, RiskMetrics' value for days (J.P. Morgan 1996, section 5.3)
REMEMBERED = 100  # changes; the first has 0.002 of the weight of the last


def recent_change(history: np.ndarray) -> float:
    """The root mean square of the recent changes of a history (T,), weighted towards the last."""
    changes = np.diff(history[-REMEMBERED - 1 :])
    weights = np.where(np.isnan(changes), 0, DECAY ** np.arange(len(changes))[::-1])
    return float(np.sqrt(np.nansum(weights * changes**2) / max(weights.sum(), np.finfo(float).tiny)))


def half_widths(
    history: np.ndarray, paths: np.ndarray, spread: float, unit: Unit = "paths"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The median (H,) of paths, and the widths below and above it. spread: the standard deviation of the context.

    In units of changes, a width grows with the square root of the steps, as a random walk does.
    """
    median, least = np.median(paths, 0), LEAST_WIDTH * spread
    if unit == "changes":
        below = above = recent_change(history) * np.sqrt(np.arange(1, len(median) + 1))
    else:
        low, high = interval_of(paths, BASE_LEVEL)
        below, above = median - low, high - median
    return median, np.maximum(below, least), np.maximum(above, least)


class Calibration(Section):
    """A combination of forecasts, and the quantiles (0 to 100%) of the scores of held-out values."""

    scores: tuple[float, ...] = Field(min_length=len(LEVELS), max_length=len(LEVELS))
    windows: int = Field(gt=0)  # the number of windows with scores
    combination: Combination | None = None  # None: only the model's forecast
    unit: Unit = "paths"

    @model_validator(mode="after")
    def _check(self) -> Calibration:
        if self.scores[0] < 0 or list(self.scores) != sorted(self.scores):
            raise ValueError("scores must be at least 0, in ascending order")
        return self

    def interval(self, history: np.ndarray, paths: np.ndarray, level: float, spread: float) -> Bounds:
        """The bounds (H,), (H,) of a level in percent around the median of paths (samples, H) after a history."""
        median, below, above = half_widths(history, paths, spread, self.unit)
        factor = float(np.interp(level, LEVELS, self.scores))
        return median - factor * below, median + factor * above

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)

    def loss(self, held_out: Sequence[HeldOut]) -> float:
        """The mean interval score at BASE_LEVEL, in standard deviations of the context: the width plus, for values
        outside, the distance times 2 / (1 - level) (Gneiting and Raftery 2007, "Strictly Proper Scoring Rules,
        Prediction, and Estimation", equation 43)."""
        losses, price = [], 2 / (1 - BASE_LEVEL / 100)
        for each in held_out:
            low, high = self.interval(each.history, each.paths, BASE_LEVEL, each.spread)
            outside = np.maximum(low - each.actual, 0) + np.maximum(each.actual - high, 0)
            losses.append(np.nanmean(high - low + price * outside) / each.spread)
        return float(np.mean(losses))


def scores_of(held_out: HeldOut, unit: Unit = "paths") -> np.ndarray:
    """The scores of held-out values that are not missing."""
    median, below, above = half_widths(held_out.history, held_out.paths, held_out.spread, unit)
    error = held_out.actual - median
    scores = np.abs(error) / np.where(error < 0, below, above)
    return scores[~np.isnan(scores)]


def calibrate(
    held_out: Sequence[HeldOut], combination: Combination | None = None, prior: Calibration | None = None
) -> Calibration:
    """The calibration from held-out windows of combined forecasts, at least one of which has a value.

    The unit is the paths' own width, unless recent changes lower the loss by LEAST_UNIT_GAIN on enough windows.
    """
    own, changes = (calibrate_in(unit, held_out, combination, prior) for unit in get_args(Unit))
    is_better = changes.loss(held_out) < (1 - LEAST_UNIT_GAIN) * own.loss(held_out)
    return changes if is_better and len(held_out) >= FEWEST_WINDOWS else own


def calibrate_in(
    unit: Unit, held_out: Sequence[HeldOut], combination: Combination | None, prior: Calibration | None
) -> Calibration:
    """The calibration in one unit.

    For a level, the bound is the k-th smallest of n scores with k = ceil((n + 1) level), or the largest if k > n. The
    scores of `prior`, if in this unit, count like PRIOR_WINDOWS windows, because the scores of one window are similar.
    """
    scores = np.concatenate([scores_of(each, unit) for each in held_out])
    assert len(scores), "windows without a known value are left out before"
    if prior is not None and prior.unit == unit:
        copies = PRIOR_WINDOWS * len(scores) / len(held_out) / (len(LEVELS) - 2)
        scores = np.concatenate([scores, np.repeat(prior.scores[1:-1], max(1, round(copies)))])
    scores = np.sort(scores)
    ranks = np.clip(np.ceil((len(scores) + 1) * LEVELS / 100).astype(int), 1, len(scores))
    quantiles = (0.0, *scores[ranks[1:] - 1].tolist())
    return Calibration(scores=quantiles, windows=len(held_out), combination=combination, unit=unit)


def load_calibration(directory: Path) -> Calibration | None:
    path = directory / INTERVALS
    return make_section(Calibration, read_json(path), str(path)) if path.exists() else None

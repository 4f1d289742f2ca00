"""Evaluation with rolling origins: the errors of forecasts, compared with seasonal naive ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretell.errors import DataError, UsageError
from foretell.forecasting.forecaster import Advance, Forecaster, ignore_progress, interval_of
from foretell.forecasting.series import Series
from foretell.typesetting.document import DocumentSection, Paragraph, Table
from foretell.typesetting.html import Shown

QUANTILES = tuple(round(0.1 * index, 1) for index in range(1, 10))
LEVELS = (80.0, 95.0)


@dataclass(frozen=True)
class Origin:
    """A point of a series from which to forecast: the values before it, and those to be forecast."""

    history: np.ndarray
    actual: np.ndarray  # (H,)


@dataclass(frozen=True)
class Plan:
    """The settings of an evaluation: the season, levels in percent, the number of sampled paths and their seed."""

    season: int
    levels: tuple[float, ...] = LEVELS
    samples: int = 100
    seed: int = 1


def rolling_origins(series: Sequence[Series], horizon: int, stride: int, windows: int) -> list[Origin]:
    """Up to `windows` origins per series, the last one `horizon` values before its end, each `stride` before the next.

    Origins without a known value before them, or to be forecast, are left out. Raises DataError if none is left.
    """
    if min(horizon, stride, windows) < 1:
        raise UsageError(f"horizon, stride and windows must be at least 1, not {horizon}, {stride}, {windows}")
    origins = []
    for each in series:
        for window in range(windows):
            at = len(each) - horizon - window * stride
            origins += [] if at < 1 else [Origin(each.values[:at], each.values[at : at + horizon])]
    return check_any(origins, horizon)


def given_origins(series: Sequence[Series], following: Sequence[Series]) -> list[Origin]:
    """One origin per series, at its end: what follows is the series of the same name in another file."""
    by_name = {each.unique_id: each for each in following}
    absent = [each.unique_id for each in series if each.unique_id not in by_name]
    if absent or len(by_name) > len(series):
        name = absent[0] if absent else next(iter(by_name.keys() - {each.unique_id for each in series}))
        raise DataError(f"the series '{name}' is in one of the two files only; both must have the same series")
    origins = [Origin(each.values, by_name[each.unique_id].values) for each in series]
    return check_any(origins, max(len(origin.actual) for origin in origins))


def check_any(origins: list[Origin], horizon: int) -> list[Origin]:
    """The origins that can be measured; none at all is a DataError."""
    kept = [each for each in origins if np.isfinite(each.history).any() and np.isfinite(each.actual).any()]
    if not kept:
        raise DataError(f"no series is longer than the horizon of {horizon}; give a shorter --horizon")
    return kept


@dataclass(frozen=True)
class Score:
    """Errors of one kind of forecast, over all origins; None for what cannot be measured."""

    mase: float | None
    mase_median: float | None
    smape: float | None
    smape_median: float | None
    wql: float | None  # the quantile loss of all values over the sum of their sizes
    by_step: list[float]  # (H,) the absolute error at each step ahead, each series in units of its seasonal error
    coverage: dict[str, float] = field(default_factory=dict)  # the share inside the interval of each level, in percent

    def to_json(self) -> dict[str, Any]:
        """All figures but those by step."""
        figures = {key: getattr(self, key) for key in ("mase", "mase_median", "smape", "smape_median", "wql")}
        return {**figures, **({"coverage": self.coverage} if self.coverage else {})}

    def cells(self) -> list[str]:
        """The figures as cells of a table; empty for what cannot be measured."""
        figures = ((self.mase, 3), (self.mase_median, 3), (self.smape, 2), (self.smape_median, 2), (self.wql, 4))
        texts = ["" if value is None else f"{value:.{digits}f}" for value, digits in figures]
        return [*texts, *(f"{share:.1f}%" for share in self.coverage.values())]


@dataclass(frozen=True)
class Evaluation:
    """The scores of the model and of the seasonal naive forecast."""

    model: Score
    naive: Score
    origins: int
    without_mase: int  # origins whose history has no seasonal error

    @property
    def behind_from(self) -> int | None:
        """The first step from which on the model's error stays above the naive forecast's; None if it does not."""
        behind = np.array(self.model.by_step) > np.array(self.naive.by_step)
        if not len(behind) or not behind[-1]:
            return None
        before = np.flatnonzero(~behind)
        return int(before[-1]) + 2 if len(before) else 1

    def describe_steps(self) -> str:
        """The number of steps at which the model's error is below the naive forecast's."""
        if not self.model.by_step:
            return "no error by step: no origin has a seasonal error before it"
        pairs = list(zip(self.model.by_step, self.naive.by_step, strict=True))
        ahead = sum(model < naive for model, naive in pairs)
        line = f"the model's error is below the seasonal naive forecast's at {ahead} of {len(pairs)} steps"
        return line if self.behind_from is None else f"{line}, and above it from step {self.behind_from} on"


@dataclass(frozen=True)
class ForecastReport(Shown):
    """An evaluation, also from at most `context` values for each key of `by_context`.

    season_reason: how the season was chosen; where: the origins in words.
    """

    evaluation: Evaluation
    by_context: dict[int, Evaluation]
    season: int
    season_reason: str
    horizon: int
    where: str

    def to_json(self) -> dict[str, Any]:
        evaluation = self.evaluation
        return {
            "season": self.season,
            "horizon": self.horizon,
            "origins": evaluation.origins,
            "without_mase": evaluation.without_mase,
            "model": evaluation.model.to_json(),
            "seasonal_naive": evaluation.naive.to_json(),
            "by_step": evaluation.model.by_step,
            "seasonal_naive_by_step": evaluation.naive.by_step,
            "behind_from": evaluation.behind_from,
            "by_context": {str(context): each.model.to_json() for context, each in self.by_context.items()},
        }

    def document(self) -> DocumentSection:
        """A row for each kind of forecast, and the settings."""
        scores = {"model": self.evaluation.model, "seasonal naive": self.evaluation.naive}
        scores |= {f"context {context}": each.model for context, each in self.by_context.items()}
        levels = [f"in {level}%" for level in self.evaluation.model.coverage]
        header = ("", "MASE", "median", "sMAPE", "median", "WQL", *levels)
        rows = [[name, *score.cells()] for name, score in scores.items()]
        table = Table(header, [[*row, *[""] * (len(header) - len(row))] for row in rows])
        lines = [
            f"season {self.season}, {self.season_reason}; horizon {self.horizon}; {self.where}",
            self.evaluation.describe_steps(),
        ]
        if without := self.evaluation.without_mase:
            lines.append(f"origins without MASE, since there is no seasonal error before them: {without:,}")
        return DocumentSection("", [table, *map(Paragraph, lines)])


def evaluate_origins(
    forecaster: Forecaster,
    origins: Sequence[Origin],
    plan: Plan,
    *,
    context: int | None = None,
    progress: Advance = ignore_progress,
) -> Evaluation:
    """Forecast from every origin and measure. context: from at most this many values."""
    horizon = max(len(origin.actual) for origin in origins)
    histories = [origin.history for origin in origins]
    paths = forecaster.sample_paths(
        histories, horizon, plan.samples, seed=plan.seed, context=context, progress=progress
    )
    naive = [seasonal_naive(origin.history, plan.season, horizon)[None] for origin in origins]
    scales = [mase_scale(origin.history, plan.season) for origin in origins]
    return Evaluation(
        score(origins, paths, plan, scales, plan.levels),
        score(origins, naive, plan, scales, ()),
        len(origins),
        sum(math.isnan(scale) for scale in scales),
    )


def score(
    origins: Sequence[Origin],
    paths: Sequence[np.ndarray],
    plan: Plan,
    scales: Sequence[float],
    levels: Sequence[float],
) -> Score:
    """The score of sampled paths (samples, H) from each origin; the median is the point forecast."""
    pairs = [(origin, sampled[:, : len(origin.actual)]) for origin, sampled in zip(origins, paths, strict=True)]
    medians = [np.median(sampled, 0) for _, sampled in pairs]
    mases = [
        mase(each.actual, median, each.history, plan.season) for (each, _), median in zip(pairs, medians, strict=True)
    ]
    smapes = [smape(each.actual, median) for (each, _), median in zip(pairs, medians, strict=True)]
    quantiles = [dict(zip(QUANTILES, np.quantile(each, QUANTILES, axis=0), strict=True)) for _, each in pairs]
    losses = [quantile_loss(each.actual, shares) for (each, _), shares in zip(pairs, quantiles, strict=True)]
    size = sum(float(np.nansum(np.abs(each.actual))) for each in origins)
    return Score(
        mean_of(mases),
        median_of(mases),
        mean_of(smapes),
        median_of(smapes),
        sum(losses) / size if size else None,
        by_step([each.actual - median for (each, _), median in zip(pairs, medians, strict=True)], scales),
        {f"{level:g}": coverage_of(pairs, level) for level in levels},
    )


def coverage_of(pairs: Sequence[tuple[Origin, np.ndarray]], level: float) -> float:
    """The percentage of values that lie inside the interval of a level."""
    counts = [coverage(each.actual, *interval_of(sampled, level)) for each, sampled in pairs]
    return 100 * sum(inside for inside, _ in counts) / sum(known for _, known in counts)


def by_step(errors: Sequence[np.ndarray], scales: Sequence[float]) -> list[float]:
    """The mean of absolute errors over their scale at each step, of the series that have a scale."""
    horizon = max(len(each) for each in errors)
    rows = [np.abs(each) / scale for each, scale in zip(errors, scales, strict=True) if not math.isnan(scale)]
    if not rows:
        return []
    padded = np.full((len(rows), horizon), np.nan)
    for row, each in zip(padded, rows, strict=True):
        row[: len(each)] = each
    known = (~np.isnan(padded)).sum(0)
    return (np.nansum(padded, 0) / np.maximum(known, 1)).tolist()


def evaluate_contexts(
    forecaster: Forecaster, origins: Sequence[Origin], plan: Plan, contexts: Sequence[int]
) -> dict[int, Evaluation]:
    return {context: evaluate_origins(forecaster, origins, plan, context=context) for context in contexts}


# --- metrics, as the M4 competition defines them ---------------------------------------------------------------------


def seasonal_naive(history: np.ndarray, season: int, horizon: int) -> np.ndarray:
    """The forecast (H,) that repeats the last season; with less history, or a missing value there, the last value."""
    last = history[~np.isnan(history)][-1]
    if len(history) < season:
        return np.full(horizon, last)
    cycle = history[-season:]
    repeated = np.tile(cycle, math.ceil(horizon / season))[:horizon]
    return np.where(np.isnan(repeated), last, repeated)


def smape(actual: np.ndarray, forecast: np.ndarray) -> float:
    """200 |y - f| / (|y| + |f|) on average, in percent; 0 where both are 0 (Makridakis et al. 2020, equation 1)."""
    size = np.abs(actual) + np.abs(forecast)
    return float(200 * np.nanmean(np.abs(actual - forecast) / np.where(size == 0, 1, size)))


def mase_scale(history: np.ndarray, season: int) -> float:
    """The mean error of the seasonal naive forecast inside the history; NaN where it cannot be measured, or is 0."""
    if len(history) <= season:
        return math.nan
    errors = np.abs(history[season:] - history[:-season])
    scale = float(np.nanmean(errors)) if np.isfinite(errors).any() else math.nan
    return scale if scale > 0 else math.nan


def mase(actual: np.ndarray, forecast: np.ndarray, history: np.ndarray, season: int) -> float:
    """The mean absolute error over `mase_scale` (Hyndman and Koehler 2006); NaN where that is."""
    return float(np.nanmean(np.abs(actual - forecast))) / mase_scale(history, season)


def quantile_loss(actual: np.ndarray, quantiles: Mapping[float, np.ndarray]) -> float:
    """Twice the pinball loss, averaged over quantiles and summed over values (the sum that WQL divides)."""
    losses = [
        2 * np.nansum(np.where(actual >= forecast, share, share - 1) * (actual - forecast))
        for share, forecast in quantiles.items()
    ]
    return float(np.mean(losses))


def coverage(actual: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[int, int]:
    """The number of known values inside an interval, and of all known values."""
    known = ~np.isnan(actual)
    return int(((actual >= low) & (actual <= high) & known).sum()), int(known.sum())


def mean_of(values: Sequence[float]) -> float | None:
    """The mean of what could be measured; None for nothing."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else None


def median_of(values: Sequence[float]) -> float | None:
    """The median of what could be measured; None for nothing."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if known else None

"""Evaluation with rolling origins: the errors of forecasts, compared with naive forecasts and AutoETS."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from foretell.errors import DataError, UsageError
from foretell.evaluation.loss import Progress, silent
from foretell.evaluation.material import VALUES
from foretell.evaluation.overlap import Overlap, overlap_entry, overlap_lines, overlap_with
from foretell.forecasting import metrics
from foretell.forecasting.forecaster import Forecaster
from foretell.forecasting.series import Series, Window, hash_values
from foretell.typesetting.document import DocumentSection, Paragraph, Table
from foretell.typesetting.html import Shown

QUANTILES = tuple(round(0.1 * index, 1) for index in range(1, 10))
LEVELS = (80.0, 95.0)
FIGURES = ("mase", "mase_median", "smape", "smape_median", "wql", "mae", "rmse")
HEADER = ("MASE", "median", "sMAPE", "WQL", "MAE", "RMSE")  # column names of the figures
MOST_SERIES_SHOWN = 20


def rolling_origins(
    series: Sequence[Series], horizon: int, stride: int, windows: int, seasons: Sequence[int]
) -> list[Window]:
    """Up to `windows` origins per series, `stride` values apart, the last one `horizon` values before the end.

    Origins without a known value before or after them are left out. Raises DataError if none is left.
    """
    if min(horizon, stride, windows) < 1:
        raise UsageError(f"horizon, stride and windows must be at least 1, not {horizon}, {stride}, {windows}")
    origins = []
    for each, season in zip(series, seasons, strict=True):
        for window in range(windows):
            at = len(each) - horizon - window * stride
            origins += [] if at < 1 else [Window(each.values[: at + horizon], at, season, name=each.unique_id)]
    return check_any(origins, horizon)


def given_origins(series: Sequence[Series], following: Sequence[Series], seasons: Sequence[int]) -> list[Window]:
    """One origin per series, at its end; the values to forecast are the series of the same name in another file."""
    by_name = {each.unique_id: each for each in following}
    absent = [each.unique_id for each in series if each.unique_id not in by_name]
    if absent or len(by_name) > len(series):
        name = absent[0] if absent else next(iter(by_name.keys() - {each.unique_id for each in series}))
        raise DataError(f"the series '{name}' is in one of the two files only; both must have the same series")
    origins = [
        Window(
            np.append(each.values, each.values_after(by_name[each.unique_id])), len(each), season, name=each.unique_id
        )
        for each, season in zip(series, seasons, strict=True)
    ]
    return check_any(origins, max(len(origin.actual) for origin in origins))


def check_any(origins: list[Window], horizon: int) -> list[Window]:
    """The origins that can be measured; a DataError if there are none."""
    kept = [each for each in origins if each.is_measurable]
    if not kept:
        raise DataError(f"no series is longer than the horizon of {horizon}; give a shorter --horizon")
    return kept


def overlap_of(forecaster: Forecaster, series: Sequence[Series], origins: Sequence[Window]) -> Overlap | None:
    """The overlap of the values that are forecast with the data of the forecaster."""
    named = {each.unique_id: each for each in series}
    hashes = [hash_values(named[origin.name], origin.values, origin.context) for origin in origins]
    return overlap_with(forecaster.data_use, np.concatenate(hashes), VALUES)


@dataclass(frozen=True)
class Score:
    """The errors of a kind of forecast over all origins; None if one cannot be measured."""

    mase: float | None
    mase_median: float | None
    smape: float | None
    smape_median: float | None
    wql: float | None  # the quantile loss of all values divided by the sum of their absolute values
    mae: float | None  # over all values, like the RMSE
    rmse: float | None
    by_step: list[float]  # (H,) the absolute error at each step ahead, in units of each series' seasonal error
    coverage: dict[str, float] = field(default_factory=dict)  # percent of values inside the interval, by level

    def to_json(self) -> dict[str, Any]:
        """All figures except those by step."""
        figures = {key: getattr(self, key) for key in FIGURES}
        return {**figures, **({"coverage": self.coverage} if self.coverage else {})}

    def cells(self) -> list[str]:
        """The figures as cells of a table; empty if one cannot be measured."""
        figures = ((self.mase, ".3f"), (self.mase_median, ".3f"), (self.smape, ".2f"), (self.wql, ".4f"))
        figures = (*figures, (self.mae, ".4g"), (self.rmse, ".4g"))
        return [
            *("" if value is None else format(value, digits) for value, digits in figures),
            *(f"{share:.1f}%" for share in self.coverage.values()),
        ]


@dataclass(frozen=True)
class RollingEvaluation:
    """The scores of the model and of the seasonal naive forecast.

    others: the scores of further forecasts. by_series: the scores of both for each series, worst first.
    """

    model: Score
    naive: Score
    origins: int
    without_mase: int  # origins whose history has no seasonal error
    others: dict[str, Score] = field(default_factory=dict)
    own_coverage: dict[str, float] = field(default_factory=dict)  # coverage before any calibration
    by_series: dict[str, tuple[Score, Score]] = field(default_factory=dict)

    @property
    def behind_from(self) -> int | None:
        """The first step from which the model's error stays above the naive forecast's; None if there is none."""
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

    season_reason: the reason for the season. where: a description of the origins.
    """

    evaluation: RollingEvaluation
    by_context: dict[int, RollingEvaluation]
    season: int | None  # None: the season of each series
    season_reason: str
    horizon: int
    where: str
    per_series: bool = False
    overlap: Overlap | None = None

    def to_json(self) -> dict[str, Any]:
        evaluation = self.evaluation
        by_series = {
            name: {"model": model.to_json(), "seasonal_naive": naive.to_json()}
            for name, (model, naive) in evaluation.by_series.items()
        }
        return {
            "season": self.season,
            "horizon": self.horizon,
            "origins": evaluation.origins,
            "without_mase": evaluation.without_mase,
            "model": evaluation.model.to_json(),
            "seasonal_naive": evaluation.naive.to_json(),
            **({"own_coverage": evaluation.own_coverage} if evaluation.own_coverage else {}),
            **{name: each.to_json() for name, each in evaluation.others.items()},
            **({"by_series": by_series} if self.per_series else {}),
            "by_step": evaluation.model.by_step,
            "seasonal_naive_by_step": evaluation.naive.by_step,
            "behind_from": evaluation.behind_from,
            "by_context": {str(context): each.model.to_json() for context, each in self.by_context.items()},
            **overlap_entry(self.overlap),
        }

    def document(self) -> DocumentSection:
        """A row for each kind of forecast, and the settings."""
        scores = {"model": self.evaluation.model, "seasonal naive": self.evaluation.naive, **self.evaluation.others}
        scores |= {f"context {context}": each.model for context, each in self.by_context.items()}
        levels = [f"in {level}%" for level in self.evaluation.model.coverage]
        header = ("", *HEADER, *levels)
        rows = [[name, *score.cells()] for name, score in scores.items()]
        table = Table(header, [[*row, *[""] * (len(header) - len(row))] for row in rows])
        lines = [
            f"season {self.season or 'by interval'}, {self.season_reason}; horizon {self.horizon}; {self.where}",
            self.evaluation.describe_steps(),
        ]
        if own := self.evaluation.own_coverage:
            shares = ", ".join(f"{share:.1f}% in {level}%" for level, share in own.items())
            lines.append(f"intervals are calibrated; quantiles of the paths would contain {shares}")
        if without := self.evaluation.without_mase:
            lines.append(f"origins without MASE, since there is no seasonal error before them: {without:,}")
        return DocumentSection("", [table, *map(Paragraph, lines), *overlap_lines(self.overlap), *self.series_parts()])

    def series_parts(self) -> list[Table | Paragraph]:
        """The table of the worst series, if requested."""
        if not self.per_series:
            return []
        rows = [
            [name, *model.cells()[: len(HEADER)], *naive.cells()[:1]]
            for name, (model, naive) in self.evaluation.by_series.items()
        ]
        left_out = len(rows) - MOST_SERIES_SHOWN
        lines = [Paragraph(f"{left_out:,} series with smaller errors are left out; --out writes all")]
        table = Table(("series", *HEADER, "seasonal naive MASE"), rows[:MOST_SERIES_SHOWN])
        return [table, *(lines if left_out > 0 else [])]


def series_rows(evaluation: RollingEvaluation) -> Iterator[list[str]]:
    """The header, then a row per series with all figures, worst first; empty if one cannot be measured."""
    yield ["unique_id", *FIGURES, "naive_mase", "naive_mae"]
    for name, (model, naive) in evaluation.by_series.items():
        values = [*(getattr(model, figure) for figure in FIGURES), naive.mase, naive.mae]
        yield [name, *("" if value is None else f"{value:.6g}" for value in values)]


def evaluate_origins(
    forecaster: Forecaster,
    origins: Sequence[Window],
    *,
    levels: Sequence[float] = LEVELS,
    samples: int = 100,
    seed: int = 1,
    context: int | None = None,
    progress: Progress = silent,
) -> RollingEvaluation:
    """Sample paths from every origin and compute the scores.

    levels: of the intervals, in percent. context: the maximum number of values to read.
    """
    horizon = max(len(origin.actual) for origin in origins)
    histories = [origin.history for origin in origins]
    seasons = [forecaster.season or origin.season for origin in origins]
    paths = forecaster.sample_paths(
        histories, horizon, samples, seed=seed, context=context, seasons=seasons, progress=progress
    )
    naive = [metrics.seasonal_naive(origin.history, origin.season, horizon)[None] for origin in origins]
    plain = replace(forecaster, calibration=None)
    own = {} if forecaster.calibration is None else coverage_by_level(plain, origins, paths, levels)
    return RollingEvaluation(
        replace(score(origins, paths), coverage=coverage_by_level(forecaster, origins, paths, levels, context)),
        score(origins, naive),
        len(origins),
        sum(math.isnan(metrics.mase_scale(each.history, each.season)) for each in origins),
        by_series=score_series(origins, paths, naive),
        own_coverage=own,
    )


def score_others(origins: Sequence[Window], progress: Progress = silent) -> dict[str, Score]:
    """The scores of the last value and, if its package is installed, of AutoETS."""
    makers: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {}
    if any(origin.season > 1 for origin in origins):
        makers["naive"] = lambda history, season, horizon: metrics.seasonal_naive(history, 1, horizon)
    if metrics.has_peer():
        makers["AutoETS"] = metrics.auto_ets
    scores = {}
    for name, make in makers.items():
        points = []
        for done, origin in enumerate(origins, start=1):
            points.append(make(origin.history, origin.season, len(origin.actual))[None])
            progress(done, len(origins))
        scores[name] = score(origins, points)
    return scores


def score_series(
    origins: Sequence[Window], paths: Sequence[np.ndarray], naive: Sequence[np.ndarray]
) -> dict[str, tuple[Score, Score]]:
    """The scores of the model and of the seasonal naive forecast for each series, largest error first."""
    indices: dict[str, list[int]] = defaultdict(list)
    for index, origin in enumerate(origins):
        indices[origin.name].append(index)
    scores: dict[str, tuple[Score, Score]] = {}
    for name, chosen in indices.items():
        own = [origins[index] for index in chosen]
        model, repeated = ([each[index] for index in chosen] for each in (paths, naive))
        scores[name] = score(own, model), score(own, repeated)

    def error(item: tuple[str, tuple[Score, Score]]) -> tuple[float, float]:
        own, _ = item[1]
        return -1.0 if own.mase is None else own.mase, own.mae or 0.0

    return dict(sorted(scores.items(), key=error, reverse=True))


def score(origins: Sequence[Window], paths: Sequence[np.ndarray]) -> Score:
    """The score of sampled paths (samples, H) from each origin; the median is the point forecast."""
    mases, smapes, losses, errors = [], [], [], []
    for origin, whole in zip(origins, paths, strict=True):
        sampled = whole[:, : len(origin.actual)]  # other origins may have more values
        median, quantiles = np.median(sampled, 0), np.quantile(sampled, QUANTILES, axis=0)
        mases.append(metrics.mase(origin.actual, median, origin.history, origin.season))
        smapes.append(metrics.smape(origin.actual, median))
        losses.append(metrics.quantile_loss(origin.actual, dict(zip(QUANTILES, quantiles, strict=True))))
        errors.append(origin.actual - median)
    size = sum(float(np.nansum(np.abs(each.actual))) for each in origins)
    known = np.concatenate(errors)[~np.isnan(np.concatenate(errors))]
    scales = [metrics.mase_scale(each.history, each.season) for each in origins]
    return Score(
        metrics.over_known(np.mean, mases),
        metrics.over_known(np.median, mases),
        metrics.over_known(np.mean, smapes),
        metrics.over_known(np.median, smapes),
        sum(losses) / size if size else None,
        float(np.abs(known).mean()),
        float(np.sqrt((known**2).mean())),
        by_step(errors, scales),
    )


def coverage_by_level(
    forecaster: Forecaster,
    origins: Sequence[Window],
    paths: Sequence[np.ndarray],
    levels: Sequence[float],
    context: int | None = None,
) -> dict[str, float]:
    """The percentage of values that lie inside the forecaster's interval of each level."""
    shares = {}
    for level in levels:
        counts = []
        for origin, sampled in zip(origins, paths, strict=True):
            seasonal = replace(forecaster, season=forecaster.season or origin.season)
            bounds = seasonal.interval(origin.history, sampled[:, : len(origin.actual)], level, context)
            counts.append(metrics.coverage(origin.actual, *bounds))
        shares[f"{level:g}"] = 100 * sum(inside for inside, _ in counts) / sum(known for _, known in counts)
    return shares


def by_step(errors: Sequence[np.ndarray], scales: Sequence[float]) -> list[float]:
    """The mean of the scaled absolute errors at each step, over series that have a scale."""
    horizon = max(len(each) for each in errors)
    rows = [np.abs(each) / scale for each, scale in zip(errors, scales, strict=True) if not math.isnan(scale)]
    return metrics.mean_by_column(rows, horizon).tolist() if rows else []

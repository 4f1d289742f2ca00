"""Forecasts of a decoder that is trained from nothing, next to classical methods.

    python bench/forecast.py --data FOLDER                         M4 hourly, 30 minutes of training
    python bench/forecast.py --data FOLDER --sets airline sp500 etth1    1, 3 and 15 minutes
    python bench/forecast.py --data FOLDER --quick                 a few steps each, to see that it runs

FOLDER holds M4_Hourly-train.csv and -test.csv (the M4 competition), airline-passengers.csv, sp500-2000.csv, ETTh1.csv.

m4: trained on the training part of all 414 series, of which the last 48 values choose the checkpoint; then one forecast
of the test part. MASE and sMAPE are those of the competition. AutoETS, AutoTheta and AutoARIMA are those of
statsforecast (`foretell[oracles]`), each on as many series, in a fixed random order, as fit --peer-minutes; their rows
have the model's figures on the same series.
airline: the last two years. sp500: log returns of the closing price, 20 days ahead, every 20 days of the last two
years; "mean" and "draws of the past" take every day for a draw from the same distribution. etth1: 96 hours ahead every
96 hours of the usual test part (hours 11,520 to 14,400), trained on the usual training part, errors in standard
deviations of that part; the linear model is one least-squares map from the last 336 values to the next 96 (NLinear,
Zeng et al. 2023).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import note, version_of
from rich.console import Console

from foretell.forecasting.forecaster import Forecaster, load_forecaster
from foretell.forecasting.metrics import mase_scale, seasonal_naive
from foretell.forecasting.output import write_table
from foretell.forecasting.rolling import Origin, Plan, Score, evaluate_origins, given_origins, rolling_origins, score
from foretell.forecasting.series import Series
from foretell.forecasting.series_file import read_series
from foretell.forecasting.timeline import numbered
from foretell.forecasting.train import ForecastRequest, train_forecaster
from foretell.session.display import PlainReporter

MINUTES = {"m4": 30.0, "airline": 1.0, "sp500": 3.0, "etth1": 15.0}
DAY, WEEK = 24, 168
PEERS = ("AutoETS", "AutoTheta", "AutoARIMA")
SP500_TEST, SP500_HORIZON = 500, 20
ETTH1_TRAIN, ETTH1_TEST, ETTH1_HORIZON, ETTH1_INPUT = 8640, (11_520, 14_400), 96, 336
RIDGE = 1.0

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What the command line asks for."""

    data: Path
    minutes: float | None
    peer_minutes: float
    samples: int
    seed: int
    quick: bool

    def request(self, file: Path, out: Path, name: str, **changes: Any) -> ForecastRequest:
        """The training of a data set."""
        overrides: dict[str, Any] = {"training": {"seed": self.seed}}
        minutes: float | None = self.minutes or MINUTES[name]
        if self.quick:
            overrides["training"] |= {"steps": 3, "batch_size": 4}
            overrides["model"], minutes = {"context_length": 128}, None
        return ForecastRequest(data=file, out=out, minutes=minutes, overrides=overrides, **changes)


def main() -> None:
    """Run the data sets asked for and print tables or one JSON object."""
    parser = make_parser("Forecasts next to classical methods.", "a few steps of each, on a few series")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the files named above")
    parser.add_argument("--sets", nargs="+", choices=tuple(SETS), default=["m4"], help="data sets (default: m4)")
    parser.add_argument("--minutes", type=float, help="of training (default: 30 for m4)")
    parser.add_argument(
        "--peer-minutes", type=float, default=5.0, help="for each of statsforecast's models (default: 5)"
    )
    parser.add_argument("--samples", type=int, default=100, help="sampled paths per series (default: 100)")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    settings = read_settings(asked)
    report = start_report("forecast", "statsforecast")
    with tempfile.TemporaryDirectory() as folder:
        report["sets"] = {name: SETS[name](settings, Path(folder)) for name in asked.sets}
    print_report(report, print_tables, as_json=asked.json)


def read_settings(asked: argparse.Namespace) -> Settings:
    """The settings; --quick makes everything small."""
    samples, peers = (4, 0.05) if asked.quick else (asked.samples, asked.peer_minutes)
    return Settings(asked.data, asked.minutes, peers, samples, asked.seed, asked.quick)


def trained(request: ForecastRequest) -> tuple[Forecaster, Row]:
    """A forecaster after its training, and what the training took."""
    started = time.perf_counter()
    session = train_forecaster(request, PlainReporter())
    seconds = time.perf_counter() - started
    forecaster = load_forecaster(session.run.directory, "cpu", "float32")
    parameters = sum(parameter.numel() for parameter in forecaster.decoder.parameters())
    return forecaster, {"steps": session.training.steps, "training_minutes": seconds / 60, "parameters": parameters}


def row_of(name: str, result: Score, origins: int) -> Row:
    """A line of a table."""
    return {"name": name, "origins": origins, **result.to_json()}


# --- M4 hourly -------------------------------------------------------------------------------------------------------


def run_m4(settings: Settings, folder: Path) -> Row:
    """M4 hourly: the model, naive forecasts, and statsforecast's models."""
    file = settings.data / "M4_Hourly-train.csv"
    series, following = read_series(file), read_series(settings.data / "M4_Hourly-test.csv")
    forecaster, about = trained(settings.request(file, folder / "m4", "m4", horizon=48))
    if settings.quick:
        series, following = series[:8], following[:8]
    origins = given_origins(series, following)
    plan = Plan(DAY, samples=settings.samples, seed=settings.seed)
    started = time.perf_counter()
    paths = forecaster.sample_paths(
        [each.history for each in origins], 48, plan.samples, seed=plan.seed, progress=show_progress("forecasting m4")
    )
    about["forecast_minutes"] = (time.perf_counter() - started) / 60
    naives: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "naive, a day": lambda history: seasonal_naive(history, DAY, 48),
        "naive, a week": lambda history: seasonal_naive(history, WEEK, 48),
        "naive, their mean": lambda history: (seasonal_naive(history, DAY, 48) + seasonal_naive(history, WEEK, 48)) / 2,
    }
    rows = [row_of("model", score_paths(origins, paths, plan, plan.levels), len(origins))]
    for name, make in naives.items():
        points = [make(each.history)[None] for each in origins]
        rows.append(row_of(name, score_paths(origins, points, plan), len(origins)))
    return {**about, "rows": rows + peer_rows(origins, paths, plan, settings)}


def score_paths(
    origins: Sequence[Origin], paths: Sequence[np.ndarray], plan: Plan, levels: Sequence[float] = ()
) -> Score:
    """The score of paths, or of point forecasts as single paths."""
    return score(origins, paths, plan, [mase_scale(each.history, plan.season) for each in origins], levels)


def peer_rows(origins: Sequence[Origin], paths: Sequence[np.ndarray], plan: Plan, settings: Settings) -> list[Row]:
    """statsforecast's models, each with the model's row on the same series; empty without the package."""
    if version_of("statsforecast") is None:
        note("statsforecast is not installed (pip install 'foretell[oracles]'), so its models are left out")
        return []
    rows: list[Row] = []
    order = np.random.default_rng(0).permutation(len(origins))
    for name in PEERS:
        chosen, points = run_peer(name, [origins[index] for index in order], settings.peer_minutes)
        same = [paths[index] for index in order[: len(chosen)]]
        rows.append(row_of(name, score_paths(chosen, points, plan), len(chosen)))
        rows.append(row_of("  model, the same", score_paths(chosen, same, plan, plan.levels), len(chosen)))
    return rows


def run_peer(name: str, origins: Sequence[Origin], minutes: float) -> tuple[list[Origin], list[np.ndarray]]:
    """The point forecasts of one of statsforecast's models for as many origins as the time allows, at least one."""
    import statsforecast.models

    started, points = time.perf_counter(), list[np.ndarray]()
    progress = show_progress(name)
    for origin in origins:
        model = getattr(statsforecast.models, name)(season_length=DAY)
        points.append(model.forecast(y=origin.history, h=len(origin.actual))["mean"][None])
        progress(len(points), len(origins))
        if time.perf_counter() - started > 60 * minutes:
            break
    return list(origins[: len(points)]), points


def show_progress(what: str) -> Callable[[int, int], None]:
    """A line every ten seconds."""
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 10:
            last = time.monotonic()
            note(f"{what}: {done} of {total}")

    return show


# --- the others ------------------------------------------------------------------------------------------------------


def run_airline(settings: Settings, folder: Path) -> Row:
    """Airline passengers: the last two years."""
    (whole,) = read_series(settings.data / "airline-passengers.csv")
    file = write_series(folder / "airline.csv", [whole.until(len(whole) - 24)])
    forecaster, about = trained(settings.request(file, folder / "airline", "airline", horizon=24, size="tiny"))
    origins = rolling_origins([whole], 24, 24, 1)
    return {**about, "rows": rows_next_to_naive(forecaster, origins, Plan(12, samples=settings.samples))}


def run_sp500(settings: Settings, folder: Path) -> Row:
    """Daily log returns of the S&P 500, whose naive forecast is their mean."""
    (prices,) = read_series(settings.data / "sp500-2000.csv", ["close"])
    known = prices.values[~np.isnan(prices.values)]
    returns = Series("return", np.diff(np.log(known)), numbered())
    file = write_series(folder / "sp500.csv", [returns.until(len(returns) - SP500_TEST)])
    forecaster, about = trained(settings.request(file, folder / "sp500", "sp500", horizon=SP500_HORIZON, size="tiny"))
    windows = 2 if settings.quick else SP500_TEST // SP500_HORIZON
    origins = rolling_origins([returns], SP500_HORIZON, SP500_HORIZON, windows)
    plan = Plan(1, samples=settings.samples)
    rows = rows_next_to_naive(forecaster, origins, plan)
    means = [np.full((1, SP500_HORIZON), each.history.mean()) for each in origins]
    past = [np.random.default_rng(0).choice(each.history, (1000, SP500_HORIZON)) for each in origins]
    rows.append(row_of("mean of the past", score_paths(origins, means, plan), len(origins)))
    rows.append(row_of("draws of the past", score_paths(origins, past, plan, plan.levels), len(origins)))
    return {**about, "rows": rows}


def run_etth1(settings: Settings, folder: Path) -> Row:
    """ETTh1, all seven columns, in standard deviations of the training part."""
    series = [standardised(each) for each in read_series(settings.data / "ETTh1.csv")]
    file = write_series(folder / "etth1.csv", [each.until(ETTH1_TRAIN) for each in series])
    forecaster, about = trained(settings.request(file, folder / "etth1", "etth1", horizon=ETTH1_HORIZON))
    first, last = ETTH1_TEST
    windows = 1 if settings.quick else (last - first) // ETTH1_HORIZON
    origins = rolling_origins([each.until(last) for each in series], ETTH1_HORIZON, ETTH1_HORIZON, windows)
    paths = forecaster.sample_paths(
        [each.history for each in origins], ETTH1_HORIZON, settings.samples, progress=show_progress("forecasting etth1")
    )
    linear = fit_linear([each.values[:ETTH1_TRAIN] for each in series])
    forecasts = {
        "model": paths,
        "naive, a day": [seasonal_naive(each.history, DAY, ETTH1_HORIZON)[None] for each in origins],
        "linear": [apply_linear(linear, each.history)[None] for each in origins],
    }
    return {**about, "rows": [errors_row(name, origins, each) for name, each in forecasts.items()]}


def standardised(series: Series) -> Series:
    """A series in standard deviations of its training part."""
    known = series.values[:ETTH1_TRAIN]
    return Series(series.unique_id, (series.values - known.mean()) / known.std(), series.timeline)


def errors_row(name: str, origins: Sequence[Origin], paths: Sequence[np.ndarray]) -> Row:
    """MSE of the mean and MAE of the median."""
    squared = [np.mean((each.actual - sampled.mean(0)) ** 2) for each, sampled in zip(origins, paths, strict=True)]
    absolute = [
        np.mean(np.abs(each.actual - np.median(sampled, 0))) for each, sampled in zip(origins, paths, strict=True)
    ]
    return {"name": name, "origins": len(origins), "mse": float(np.mean(squared)), "mae": float(np.mean(absolute))}


def fit_linear(series: Sequence[np.ndarray]) -> np.ndarray:
    """One least-squares map (input + 1, horizon) for all series, of values minus the last known one."""
    length = ETTH1_INPUT + ETTH1_HORIZON
    windows = np.concatenate([np.lib.stride_tricks.sliding_window_view(each, length)[::3] for each in series])
    known = windows[:, :ETTH1_INPUT]
    inputs = np.concatenate([known - known[:, -1:], np.ones((len(known), 1))], axis=1)
    targets = windows[:, ETTH1_INPUT:] - known[:, -1:]
    return np.linalg.solve(inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1]), inputs.T @ targets)


def apply_linear(weights: np.ndarray, history: np.ndarray) -> np.ndarray:
    """The linear forecast after a history."""
    known = history[-ETTH1_INPUT:]
    return np.append(known - known[-1], 1.0) @ weights + known[-1]


def rows_next_to_naive(forecaster: Forecaster, origins: Sequence[Origin], plan: Plan) -> list[Row]:
    """The model's row and that of the seasonal naive forecast."""
    result = evaluate_origins(forecaster, origins, plan)
    return [row_of("model", result.model, len(origins)), row_of("seasonal naive", result.naive, len(origins))]


def write_series(path: Path, series: Sequence[Series]) -> Path:
    """A file in the long format, for training."""
    rows = (
        [each.unique_id, each.timeline.text(index), repr(float(value))]
        for each in series
        for index, value in enumerate(each.values)
    )
    write_table(path, iter([["unique_id", "ds", "y"], *rows]))
    return path


SETS: dict[str, Callable[[Settings, Path], Row]] = {
    "m4": run_m4,
    "airline": run_airline,
    "sp500": run_sp500,
    "etth1": run_etth1,
}

# --- tables ----------------------------------------------------------------------------------------------------------

COLUMNS = {"MASE": "mase", "median": "mase_median", "sMAPE": "smape", "median ": "smape_median", "WQL": "wql"}
ERRORS = {"MSE": "mse", "MAE": "mae"}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A table per data set."""
    for name, result in report["sets"].items():
        title = f"{name}: {result['parameters']:,} parameters, {result['steps']:,} steps"
        columns = ERRORS if "mse" in result["rows"][0] else COLUMNS
        levels = list(result["rows"][0].get("coverage", {}))
        table = make_table(
            ["", "series" if name == "m4" else "origins", *columns, *(f"in {level}%" for level in levels)],
            words={""},
            title=f"{title}, {result['training_minutes']:.1f} minutes of training",
        )
        for row in result["rows"]:
            figures = [number(row.get(key)) for key in columns.values()]
            shares = [f"{row['coverage'][level]:.1f}" if "coverage" in row else "" for level in levels]
            table.add_row(row["name"], str(row["origins"]), *figures, *shares)
        console.print(table)


def number(value: float | None) -> str:
    """Four significant digits; `-` for what cannot be measured."""
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    main()

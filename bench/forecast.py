"""Forecasts after training with the defaults, compared with naive forecasts and AutoETS.

    python bench/forecast.py --data FOLDER                                    all sets, 3 minutes of training each
    python bench/forecast.py --data FOLDER --sets m4 etth1 --minutes 10 --seed 2
    python bench/forecast.py --data FOLDER --minutes 0                        almanac without training
    python bench/forecast.py --data FOLDER --quick                            3 steps each, to see that it runs

FOLDER holds M4_Hourly-train.csv and -test.csv (the M4 competition), airline-passengers.csv, sp500-2000.csv (closing
prices), ETTh1.csv (seven columns) and daily-min-temperatures.csv; `weekly` has weekly means of the temperatures and of
the prices; `plateaus` and `stops` are made here, with a horizon of 13. The last values of every series, by set, are the
test. Training sees the values before, and holds out the last of these to choose the checkpoint and to calibrate
intervals. Only data, minutes and the seed are given: season, horizon, context and size are the defaults. The same from
the command line: `foretell train --task forecast FILE --minutes 3`, then `foretell evaluate MODEL WHOLE --windows N`.

AutoETS (`foretell[forecast]`) is fitted at each origin, on the last ETS_HISTORY values. Where there are more than
--ets-origins, it forecasts from an evenly spread sample of them, and "foretell, the same" has foretell's errors there.
OWA of M4 hourly is relative to the competition's Naive 2.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import note
from rich.console import Console

from foretell.config.weight_shapes import count_parameters
from foretell.forecasting.forecaster import load_forecaster
from foretell.forecasting.metrics import WITHOUT_PEER, auto_ets, has_peer, seasonal_naive
from foretell.forecasting.output import write_table
from foretell.forecasting.rolling import RollingEvaluation, Score, evaluate_origins, rolling_origins, score
from foretell.forecasting.series import Series, Timeline, Window, choose_seasons, single
from foretell.forecasting.series_file import read_series
from foretell.forecasting.train import INCLUDED, ForecastRequest, ForecastTraining
from foretell.session.display import PlainReporter
from foretell.session.protocol import run_training

NAIVE2 = {"mase": 2.395, "smape": 18.383}  # of M4 hourly (Makridakis et al. 2020)
WEEK = 7  # days
MOST_WINDOWS = 12  # origins per series
ETS_HISTORY = 1000  # values: AutoETS takes minutes for a series of ten thousand

Row = dict[str, Any]


def main() -> None:
    """Run the data sets asked for and print a table or one JSON object."""
    parser = make_parser("Forecasts after training with the defaults.", "3 steps of each, few series and paths")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the files named above")
    parser.add_argument("--sets", nargs="+", choices=tuple(SETS), default=list(SETS))
    parser.add_argument("--minutes", type=float, default=3.0, help="of each training (default: 3); 0: almanac as it is")
    parser.add_argument("--model", default=INCLUDED, help="the forecaster for --minutes 0 (default: almanac)")
    parser.add_argument("--samples", type=int, default=100, help="paths of a forecast (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and windows (default: 1)")
    parser.add_argument("--ets-origins", type=int, default=40, help="AutoETS forecasts from at most this number")
    arguments = parser.parse_args()
    report = start_report("forecast", "statsforecast") | {"minutes": arguments.minutes, "seed": arguments.seed}
    if not has_peer():
        note(WITHOUT_PEER)
    with tempfile.TemporaryDirectory() as folder:
        report["sets"] = {name: run(name, arguments, Path(folder) / name) for name in arguments.sets}
    print_report(report, print_tables, as_json=arguments.json)


def run(name: str, arguments: argparse.Namespace, out: Path) -> Row:
    """One data set: a training on all values before the test, and the errors of forecasts of the test."""
    data, quick = SETS[name](arguments.data), arguments.quick
    series = data.series[:4] if quick else data.series
    known = [each.until(len(each) - data.test) for each in series]
    started, steps = time.perf_counter(), 0
    if arguments.minutes or quick:
        steps = train(known, arguments, out)
    minutes = (time.perf_counter() - started) / 60
    forecaster = load_forecaster(out if steps else arguments.model, "cpu")
    forecaster, horizon = forecaster.for_series(known)
    horizon = data.horizon or horizon
    windows = max(1, min(MOST_WINDOWS, data.test // horizon))
    seasons, _ = choose_seasons(known, None)
    origins = rolling_origins(series, horizon, data.test // windows, windows, seasons)
    measure = partial(evaluate_origins, forecaster, samples=4 if quick else arguments.samples, seed=arguments.seed)
    return {
        "parameters": count_parameters(forecaster.decoder.config),
        "steps": steps,
        "training_minutes": minutes,
        "series": len(series),
        "season": single(seasons),
        "horizon": horizon,
        "rows": rows_of(measure, origins, 2 if quick else arguments.ets_origins),
    }


def train(known: Sequence[Series], arguments: argparse.Namespace, out: Path) -> int:
    """Train on these values with the defaults; returns the number of steps."""
    file = write_series(out.with_suffix(".csv"), known)
    training = {"seed": arguments.seed, **({"steps": 3, "batch_size": 4} if arguments.quick else {})}
    minutes = None if arguments.quick else arguments.minutes
    request = ForecastRequest(data=file, out=out, minutes=minutes, overrides={"training": training})
    return run_training(ForecastTraining(request), PlainReporter()).progress.step


def rows_of(measure: Callable[..., RollingEvaluation], origins: Sequence[Window], ets_origins: int) -> list[Row]:
    """The rows of a table: all methods on all origins, AutoETS on some of them."""
    evaluation = measure(origins, progress=show_progress("foretell"))
    rows = [row_of("foretell", evaluation.model, origins), row_of("seasonal naive", evaluation.naive, origins)]
    points = [seasonal_naive(each.history, 1, len(each.actual))[None] for each in origins]
    rows.append(row_of("naive", score(origins, points), origins))
    step = -(-len(origins) // ets_origins)
    some, progress = origins[::step], show_progress("AutoETS")
    if has_peer():
        if step > 1:
            rows.append(row_of("foretell, the same", measure(some).model, some))
        points = []
        for each in some:
            points.append(auto_ets(each.history[-ETS_HISTORY:], each.season, len(each.actual))[None])
            progress(len(points), len(some))
        rows.append(row_of("AutoETS", score(some, points), some))
    return rows


def row_of(name: str, result: Score, origins: Sequence[Window]) -> Row:
    return {"name": name, "origins": len(origins), **result.to_json()}


def show_progress(what: str) -> Callable[[int, int], None]:
    """A line every ten seconds."""
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 10:
            last = time.monotonic()
            note(f"{what}: {done} of {total}")

    return show


# --- data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataSet:
    """Whole series, and the number of their last values that are the test. horizon: None for the default."""

    series: list[Series]
    test: int
    horizon: int | None = None


def read_m4(folder: Path) -> DataSet:
    """M4 hourly: the test file continues the training file."""
    following = {each.unique_id: each.values for each in read_series(folder / "M4_Hourly-test.csv")}
    series = read_series(folder / "M4_Hourly-train.csv")
    whole = [replace(each, values=np.append(each.values, following[each.unique_id])) for each in series]
    return DataSet(whole, 48)


def read_weekly(folder: Path) -> DataSet:
    """Weekly means of the temperatures and of the prices; the last two years are the test."""
    temperatures = read_series(folder / "daily-min-temperatures.csv")
    prices = read_series(folder / "sp500-2000.csv", ["close"])
    return DataSet([weekly(each, 7) for each in temperatures] + [weekly(each, 5) for each in prices], 2 * 52)


def weekly(series: Series, days: int) -> Series:
    """The means of whole weeks of a series with a value for `days` days per week."""
    weeks = len(series) // days
    timeline = replace(series.timeline, unit="second", step=WEEK * 86400, first=0, date_format="%Y-%m-%d")
    return Series(series.unique_id, np.nanmean(series.values[: weeks * days].reshape(weeks, days), axis=1), timeline)


WEEKS = Timeline("second", WEEK * 86400, 0, "%Y-%m-%d")
MADE, AHEAD, VARIED = 40, 13, (0.002, 0.02)  # series; weeks to forecast; shocks per week, as shares of the level


def make_flattened(seed: int, shocks: float) -> DataSet:
    """Weekly series that rise for two to six years, a walk with a drift, and then stay flat for 13 to 91 weeks.

    shocks: their size on the plateau, in those of the rise; 0: the value stops.
    """
    made = []
    for index in range(MADE):
        rng = np.random.default_rng((seed, index))
        rise, flat = int(rng.integers(104, 313)), int(rng.integers(13, 92)) + AHEAD
        steps = rng.uniform(*VARIED) * rng.standard_normal(rise + flat)
        steps[:rise] += rng.uniform(1, 3) / rise
        steps[rise:] *= shocks
        made.append(Series(f"{index}", 100 * (1 + steps.cumsum().clip(-0.9)), WEEKS))
    return DataSet(made, AHEAD, AHEAD)


SETS: dict[str, Callable[[Path], DataSet]] = {
    "m4": read_m4,
    "airline": lambda folder: DataSet(read_series(folder / "airline-passengers.csv"), 24),
    "sp500": lambda folder: DataSet(read_series(folder / "sp500-2000.csv", ["close"]), 260),
    "temperatures": lambda folder: DataSet(read_series(folder / "daily-min-temperatures.csv"), 365),
    "etth1": lambda folder: DataSet(read_series(folder / "ETTh1.csv"), 2880),
    "weekly": read_weekly,
    "plateaus": lambda folder: make_flattened(1, shocks=1.0),
    "stops": lambda folder: make_flattened(2, shocks=0.0),
}


def write_series(path: Path, series: Sequence[Series]) -> Path:
    """A file in the long format, for training."""
    rows = (
        [each.unique_id, each.timeline.text(index), repr(float(value))]
        for each in series
        for index, value in enumerate(each.values)
    )
    write_table(path, iter([["unique_id", "ds", "y"], *rows]))
    return path


# --- the table -------------------------------------------------------------------------------------------------------

COLUMNS = {"MASE": ("mase", ".3f"), "sMAPE": ("smape", ".2f"), "MAE": ("mae", ".4g"), "RMSE": ("rmse", ".4g")}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A table per data set."""
    for name, result in report["sets"].items():
        first = result["rows"][0]
        table = make_table(
            ["", "origins", *COLUMNS, *(f"in {level}%" for level in first["coverage"])],
            words={""},
            title=f"{name}: {result['series']} series, season {result['season']}, horizon {result['horizon']}; "
            f"{result['steps']:,} steps, {result['training_minutes']:.1f} minutes",
        )
        for row in result["rows"]:
            figures = ["-" if row[key] is None else format(row[key], digits) for key, digits in COLUMNS.values()]
            shares = [f"{share:.1f}" for share in row.get("coverage", {}).values()] or [""] * len(first["coverage"])
            table.add_row(row["name"], str(row["origins"]), *figures, *shares)
        console.print(table)
        if name == "m4":
            console.print(f"OWA of foretell: {np.mean([first[key] / NAIVE2[key] for key in NAIVE2]):.3f}")


if __name__ == "__main__":
    main()

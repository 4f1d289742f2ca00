"""The coverage of calibrated intervals over whole histories, with forecasts of almanac, without training.

    python bench/intervals.py --data FOLDER --sets sp500 temperatures etth1
    python bench/intervals.py --data FOLDER --sets sp500 --quick         one stretch, to see that it runs

The coverage in one test is a share of few values that depend on each other. Here each stretch of STRETCH windows of a
history has intervals from the CALIBRATED windows before it. The data sets come from `bench/forecast.py`; almanac was
trained on synthetic series alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from forecast import SETS, DataSet, show_progress
from rich.console import Console

from foretell.forecasting.calibration import HeldOut, calibrate, calibrate_in
from foretell.forecasting.forecaster import load_forecaster
from foretell.forecasting.rolling import LEVELS, rolling_origins

STRETCH, CALIBRATED = 26, 64  # windows
PATHS = 50


def main() -> None:
    """Run the data sets asked for and print a table or one JSON object."""
    parser = make_parser("The coverage of calibrated intervals over whole histories.", "one stretch, few paths")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the files of bench/forecast.py")
    parser.add_argument("--sets", nargs="+", choices=tuple(SETS), default=["sp500", "temperatures", "etth1"])
    arguments = parser.parse_args()
    report = start_report("intervals")
    report["sets"] = {name: stretches(SETS[name](arguments.data), arguments.quick) for name in arguments.sets}
    print_report(report, print_stretches, as_json=arguments.json)


def stretches(data: DataSet, quick: bool) -> list[dict[str, Any]]:
    """Coverage and interval score of each stretch of windows, with intervals from the windows before it."""
    forecaster = replace(load_forecaster("almanac", "cpu"), calibration=None)
    forecaster, horizon = forecaster.for_series(data.series)
    windows = STRETCH + CALIBRATED if quick else min(map(len, data.series)) // horizon - 1
    held_out: list[list[HeldOut]] = []  # of each series, the newest first
    for each in data.series[: 1 if quick else None]:
        origins = rolling_origins([each], horizon, horizon, windows, forecaster.seasons_of([each]))
        samples, progress = 4 if quick else PATHS, show_progress(each.unique_id)
        paths = forecaster.sample_paths([origin.history for origin in origins], horizon, samples, progress=progress)
        held_out.append(
            [
                HeldOut(**vars(origin), paths=sampled, spread=forecaster.spread(origin.history, horizon))
                for origin, sampled in zip(origins, paths, strict=True)
            ]
        )
    rows = []
    for first in range(0, windows - STRETCH - CALIBRATED + 1, STRETCH):
        tested, known = (
            [window for each in held_out for window in each[start : start + count]]
            for start, count in ((first, STRETCH), (first + STRETCH, CALIBRATED))
        )
        made, own = calibrate(known), calibrate_in("paths", known, None, None)
        pairs = [(each.actual, partial(made.interval, each.history, each.paths, spread=each.spread)) for each in tested]
        coverage = {}
        for level in LEVELS:
            bounds = [(actual, *interval(level)) for actual, interval in pairs]
            inside = [((low <= actual) & (actual <= high))[~np.isnan(actual)] for actual, low, high in bounds]
            coverage[f"{level:g}"] = 100 * float(np.concatenate(inside).mean())
        rows.append({"unit": made.unit, "loss": made.loss(tested) / own.loss(tested), "coverage": coverage})
    return rows


def print_stretches(console: Console, report: BenchmarkReport) -> None:
    """A row per data set."""
    table = make_table(
        ["", "stretches", "by changes", *(f"in {level:g}%" for level in LEVELS), "score"],
        words={""},
        title="intervals of almanac: share inside (least to most); interval score relative to the width of the paths",
    )
    for name, rows in report["sets"].items():
        shares = [[row["coverage"][f"{level:g}"] for row in rows] for level in LEVELS]
        cells = (f"{np.mean(each):.1f} ({min(each):.0f} to {max(each):.0f})" for each in shares)
        changes = sum(row["unit"] == "changes" for row in rows)
        table.add_row(name, str(len(rows)), str(changes), *cells, f"{np.mean([row['loss'] for row in rows]):.2f}")
    console.print(table)


if __name__ == "__main__":
    main()

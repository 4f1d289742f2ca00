"""Time and memory by context length, width, depth and vocabulary, with fitted exponents; and on two processes.

    python bench/scale.py --png scale.png    every dimension and weak scaling: about five minutes on two cores
    python bench/scale.py --quick            three points of each dimension: under two minutes

One dimension at a time changes, the others stay as in BASE. Each point runs in a new process with one thread, in
float32: training steps (forward, backward, clip, AdamW) on random tokens, then a forward pass over the same batch as it
reads a prompt. The time is the fastest of all steps, since other work on the machine only adds to it. Memory is the
peak of the process, less that of one that computes nothing.

An exponent is fitted to the points by least squares in the logarithms, and to what the formulas say of the same sizes:
6N + 12LDT operations per token for a step, a third of that for reading, with the head at one position per row, and for
memory the two bounds of `foretell plan`. Weak scaling is explained in weak_scaling.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import note
from processes import Child, peak_memory_in_child
from rich.console import Console
from scale_points import ROWS, Effort, Point, formulas, make_point, measure, measured, model
from weak_scaling import measure_weak_scaling, print_weak_scaling

from foretell.errors import UsageError
from foretell.session.plots import check_can_draw, picture

BASE = {"context_length": 256, "width": 256, "num_layers": 4, "vocab_size": 1024}
Sizes = dict[str, tuple[int, ...]]
FULL: Sizes = {
    "context_length": (64, 128, 256, 512, 1024),
    "width": (64, 128, 256, 512, 768),
    "num_layers": (1, 2, 4, 8),
    "vocab_size": (256, 1024, 4096, 16384),
}
QUICK: Sizes = {
    "context_length": (128, 256, 512),
    "width": (128, 256, 512),
    "num_layers": (2, 4, 8),
    "vocab_size": (1024, 4096, 16384),
}
NAMES = {"context_length": "context T", "width": "width D", "num_layers": "depth L", "vocab_size": "vocab V"}
QUANTITIES = ("step", "reading", "memory")


def main() -> None:
    """Measure, draw if asked, and print tables or one JSON object."""
    parser = make_parser("Time and memory by the sizes of a model, and on two processes.", "three points of each")
    parser.add_argument("--png", type=Path, help="draw the curves into this file (needs foretell[plot])")
    arguments = parser.parse_args()
    try:
        check_can_draw(arguments.png)
    except UsageError as error:
        parser.error(str(error))
    nothing = peak_memory_in_child(lambda: None)  # the interpreter and torch
    sizes, effort = (QUICK, Effort(1, 0.3)) if arguments.quick else (FULL, Effort(2, 0.7))
    dimensions = measure_dimensions(sizes, effort, nothing)
    report = {
        **start_report("scale"),
        "quick": arguments.quick,
        "base": {**BASE, "rows": ROWS},
        "dimensions": dimensions,
        "weak_scaling": measure_weak_scaling(model(BASE), 1 if arguments.quick else 3, nothing),
    }
    if arguments.png is not None:
        write_plot(arguments.png, dimensions, NAMES)
    print_report(report, print_tables, as_json=arguments.json)


def measure_dimensions(sizes: Sizes, effort: Effort, nothing: int) -> dict[str, dict[str, Any]]:
    """For each dimension its points, and the laws through them. nothing: bytes of a process that computes nothing."""
    results: dict[tuple[str, int], list[dict[str, Any]]] = {
        (name, value): [] for name, values in sizes.items() for value in values
    }
    for round_index in range(effort.rounds):
        for (name, value), rounds in results.items():
            note(f"round {round_index + 1} of {effort.rounds}: {NAMES[name]} = {value:,}")
            config = model({**BASE, name: value})
            figures, peak = Child.start(lambda config=config: measure(config, effort.seconds)).result()
            rounds.append({**figures, "memory": peak - nothing})
    dimensions = {}
    for name, values in sizes.items():
        points = [make_point(value, model({**BASE, name: value}), results[name, value]) for value in values]
        dimensions[name] = {"points": points, "laws": laws_of(points)}
    return dimensions


def laws_of(points: list[Point]) -> dict[str, dict[str, Any]]:
    """The law through each quantity, with the laws through its formulas at the same sizes."""
    values = [point["value"] for point in points]
    laws = {}
    for quantity in QUANTITIES:
        columns = zip(*(formulas(point, quantity) for point in points), strict=True)
        laws[quantity] = {
            "measured": asdict(fit_power_law(values, [measured(point, quantity) for point in points])),
            "formula": [asdict(fit_power_law(values, column)) for column in columns],
        }
    return laws


# --- tables ----------------------------------------------------------------------------------------------------------


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """The points of each dimension, the exponents, and weak scaling."""
    base = ", ".join(f"{NAMES[name]} {value:,}" for name, value in BASE.items())
    console.print(f"\nbase: {base}; {ROWS} rows, float32, one thread", style="bold")
    console.print("the fastest step; GFLOP/s of 6N + 12LDT; planned: the bounds of foretell plan")
    for name, dimension in report["dimensions"].items():
        columns = (NAMES[name], "parameters", "step, ms", "GFLOP/s", "read, ms", "memory, MB", "planned, MB")
        table = make_table(columns)
        for point in dimension["points"]:
            table.add_row(*point_cells(point))
        console.print()
        console.print(table)
    columns = ("", "of", "exponent", "R²", "formula", "last two", "of formula")
    table = make_table(columns, words={"", "of"})
    for name, dimension in report["dimensions"].items():
        for quantity, laws in dimension["laws"].items():
            table.add_row(NAMES[name] if quantity == QUANTITIES[0] else "", quantity, *law_cells(laws))
    console.print("\nexponents, fitted to all sizes and between the last two", style="bold")
    console.print(table)
    print_weak_scaling(console, report["weak_scaling"])
    if report["quick"]:
        console.print("--quick: few sizes and steps; small differences mean nothing")


def point_cells(point: Point) -> list[str]:
    step, (low, high) = point["step"]["low"], point["planned_memory"]
    return [
        f"{point['value']:,}",
        f"{point['parameters']:,}",
        f"{1e3 * step:,.1f}",
        f"{point['step_flops'] / step / 1e9:.0f}",
        f"{1e3 * point['reading']['low']:,.1f}",
        f"{point['memory'] / 1e6:,.0f}",
        f"{low / 1e6:,.0f}-{high / 1e6:,.0f}",
    ]


def law_cells(laws: dict[str, Any]) -> list[str]:
    """Exponent and R² of what was measured, then the formula's exponent; the same between the last two sizes."""
    law, others = PowerLaw(**laws["measured"]), [PowerLaw(**formula) for formula in laws["formula"]]
    return [
        f"{law.exponent:.2f}",
        f"{law.r_squared:.3f}",
        to_range(other.exponent for other in others),
        f"{law.last:.2f}",
        to_range(other.last for other in others),
    ]


def to_range(exponents: Iterable[float]) -> str:
    """`1.23`, or `0.95-1.10` for two bounds."""
    return "-".join(dict.fromkeys(f"{exponent:.2f}" for exponent in sorted(exponents)))


if __name__ == "__main__":
    main()


# --- the power laws, and their curves as a PNG -----------------------------------------------------------------------


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


PANELS = {"step": "training step, s", "reading": "reading the batch, s", "memory": "memory of the process, MB"}
UNITS = {"step": 1.0, "reading": 1.0, "memory": 1e6}


def write_plot(path: Path, dimensions: dict[str, dict[str, Any]], names: dict[str, str]) -> None:
    """Draw a row of panels per quantity and a column per dimension, all axes logarithmic."""
    with picture(path, (3.2 * len(dimensions), 8), 110) as figure:
        grid = figure.subplots(len(PANELS), len(dimensions), sharey="row", squeeze=False)
        for row, quantity in zip(grid, PANELS, strict=True):
            for axes, (name, dimension) in zip(row, dimensions.items(), strict=True):
                draw_panel(axes, quantity, dimension)
                axes.set_xlabel(names[name])
            row[0].set_ylabel(PANELS[quantity])


def draw_panel(axes: Any, quantity: str, dimension: dict[str, Any]) -> None:
    """Measured points and their law; the bounds of the plan, or the operations at the rate of the largest size."""
    points, laws, unit = dimension["points"], dimension["laws"][quantity], UNITS[quantity]
    values, figures = [point["value"] for point in points], [measured(point, quantity) / unit for point in points]
    law = PowerLaw(**laws["measured"])
    axes.plot(values, figures, "o", color="C0", ms=5)
    axes.plot(values, [law.at(value) / unit for value in values], "-", color="C0", label=f"fit {law.exponent:.2f}")
    columns = list(zip(*(formulas(point, quantity) for point in points), strict=True))
    if quantity == "memory":
        low, high = ([value / unit for value in column] for column in columns)
        axes.fill_between(values, low, high, color="C1", alpha=0.25, label="plan")
    else:
        operations, exponent = columns[0], laws["formula"][0]["exponent"]
        scaled = [figures[-1] * value / operations[-1] for value in operations]
        axes.plot(values, scaled, "--", color="C1", label=f"formula {exponent:.2f}")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(values, [f"{value:,}" for value in values], rotation=30)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)

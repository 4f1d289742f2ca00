"""The loss by size and tokens read, and the curve that chooses a size for a given time (session/budget.py).

    python bench/curves.py text FILES... --results text.json       trains what is missing of the points, then fits
    python bench/curves.py forecast FILE --results series.json
    python bench/curves.py translate FILE --results pairs.json
    python bench/curves.py text FILES... --quick                   a few short trainings, to see that it runs

Each point is a training with the defaults of its size, its schedule completed: `foretell train FILES --size S --steps
N`. The curve is L(N, D) = E + A / N^a + B / D^b (Hoffmann et al. 2022, "Training Compute-Optimal Large Language
Models", equation 2) of N parameters and D tokens, fitted as there: log L, with a Huber loss, from many starts. Tokens
that are read again count less (`effective_tokens`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import note
from rich.console import Console

from foretell.runs.run import Run
from foretell.session.budget import LossCurve, effective_tokens

HUBER = 1e-3  # of log L, as in Hoffmann et al.
Point = dict[str, Any]

# size: the numbers of steps
STEPS: dict[str, dict[str, tuple[int, ...]]] = {
    "text": {"toy": (128, 512, 2048), "tiny": (64, 256, 512), "small": (64, 128)},
    "forecast": {"toy": (100, 300, 900), "tiny": (100, 300), "small": (60,)},
    "translate": {"toy": (400, 1600), "tiny": (400, 1600), "mini": (480,), "small": (370,)},
}
QUICK: dict[str, tuple[int, ...]] = {"toy": (2, 4, 6), "tiny": (2, 4, 6)}


def main() -> None:
    """Train the missing points, fit, and print a table or one JSON object."""
    parser = make_parser("Loss by size and tokens, with a fitted curve.", "a few steps of two sizes")
    parser.add_argument("task", choices=STEPS)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--results", type=Path, help="a JSON file: points in it are kept, new ones are added")
    parser.add_argument("--unique", type=float, default=1e12, help="different tokens of the data (default: all read)")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else STEPS[arguments.task]
    points = train_points(arguments, sizes)
    curve = fit(points, arguments.unique)
    report = start_report("curves") | {"task": arguments.task, "points": points, "curve": curve._asdict()}
    print_report(report, print_tables, as_json=arguments.json)


def train_points(arguments: argparse.Namespace, sizes: dict[str, tuple[int, ...]]) -> list[Point]:
    """All points, in ascending order of steps; those of --results are not trained again."""
    kept = arguments.results and arguments.results.exists() and json.loads(arguments.results.read_text("utf-8"))
    points: list[Point] = kept or []
    done = {(point["size"], point["steps"]) for point in points}
    wanted = sorted((steps, size) for size, numbers in sizes.items() for steps in numbers)
    for steps, size in wanted:
        if (size, steps) in done:
            continue
        points.append(train_point(arguments.task, arguments.files, size, steps))
        note(json.dumps(points[-1]))
        if arguments.results:
            arguments.results.write_text(json.dumps(points, indent=1), encoding="utf-8")
    return points


def train_point(task: str, files: list[Path], size: str, steps: int) -> Point:
    """A whole training, in a new process: its lowest loss on held-out data, and what it read."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "foretell", "train", *map(str, files), "--out", str(out)]
        options = ["--task", task, "--size", size, "--steps", str(steps)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = Run(out)
        lines = list(run.metrics.records())
        losses = [line["validation_loss"] for line in lines if line["validation_loss"] is not None]
        return {
            "size": size,
            "steps": steps,
            "parameters": run.record().parameters,
            "tokens": lines[-1]["tokens"],
            "loss": min(losses),
            "cpu_seconds": round(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, 1),
        }


# --- the fit ---------------------------------------------------------------------------------------------------------


def fit(points: list[Point], unique: float) -> LossCurve:
    """The curve with the smallest Huber loss of log L over the points. unique: different tokens of the data."""
    from scipy.optimize import minimize

    sizes = np.log([point["parameters"] for point in points])
    tokens = np.log([effective_tokens(point["tokens"], unique) for point in points])
    losses = np.log([point["loss"] for point in points])

    def huber(values: np.ndarray) -> float:
        floor, a_scale, a, b_scale, b = values
        terms = np.stack([np.full_like(sizes, floor), a_scale - a * sizes, b_scale - b * tokens])
        errors = np.abs(np.logaddexp.reduce(terms) - losses)
        return float(np.where(errors < HUBER, errors**2 / 2, HUBER * (errors - HUBER / 2)).sum())

    starts = itertools.product((-1.0, 0.5, 1.0), (1.0, 4.0, 8.0), (0.2, 0.5), (1.0, 4.0, 8.0), (0.2, 0.5))
    best = min((minimize(huber, start, method="L-BFGS-B") for start in starts), key=lambda result: result.fun)
    floor, a_scale, a, b_scale, b = best.x
    return LossCurve(*(float(value) for value in (np.exp(floor), np.exp(a_scale), a, np.exp(b_scale), b)))


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """The points with their fitted losses, and the curve."""
    curve = LossCurve(**report["curve"])
    table = make_table(["size", "parameters", "steps", "tokens", "CPU s", "loss", "fitted"], words={"size"})
    for point in sorted(report["points"], key=lambda each: (each["parameters"], each["steps"])):
        fitted = curve.loss(point["parameters"], point["tokens"])
        numbers = (f"{point[name]:,}" for name in ("parameters", "steps", "tokens"))
        table.add_row(point["size"], *numbers, f"{point['cpu_seconds']:.0f}", f"{point['loss']:.3f}", f"{fitted:.3f}")
    console.print(table)
    console.print(curve)


if __name__ == "__main__":
    main()

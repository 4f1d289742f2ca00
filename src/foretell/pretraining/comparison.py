"""Curves of several runs in one picture: with characters, and as a PNG."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretell.errors import OutputError, UsageError

MARKS = "●○▲△■□◆◇"  # one a run, so that they can be told apart without colours
WIDTH, HEIGHT = 70, 14  # of the field for the curves, in characters
LABEL = 8  # columns before it
METRICS = {"validation_loss": "validation loss", "loss": "training loss"}

Points = list[tuple[float, float]]
Metrics = list[dict[str, Any]]


def shared_metric(runs: Sequence[Metrics]) -> str:
    """The validation loss where every run has some of it, else the training loss."""
    return "validation_loss" if all(len(points_of(one, "validation_loss", "step")) > 1 for one in runs) else "loss"


def shared_axis(runs: Sequence[Metrics]) -> str:
    """Steps where they are alike, and tokens where a step of one run has more of them than one of another."""
    per_step = {round(one[-1]["tokens"] / one[-1]["step"], 3) for one in runs if one and one[-1].get("tokens")}
    return "step" if len(per_step) < 2 else "tokens"


def points_of(metrics: Metrics, key: str, axis: str) -> Points:
    """A metric over steps or tokens, without what is absent or not finite."""
    found = ((one.get(axis), one.get(key)) for one in metrics)
    return [(x, y) for x, y in found if x is not None and y is not None and math.isfinite(y)]


def plot(curves: Sequence[Points], axis: str) -> str:
    """Up to as many curves as there are marks, with their scale, in 80 columns; empty where there is nothing."""
    points = [point for curve in curves for point in curve]
    if not points:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    columns = [heights(curve, left, right) for curve in curves]
    known = [y for curve in columns for y in curve if y is not None]
    low, high = min(known), max(known)
    field = [[" "] * WIDTH for _ in range(HEIGHT)]
    for place in range(WIDTH):
        for row, marks in marks_by_row([curve[place] for curve in columns], low, high).items():
            field[row][place] = marks[place % len(marks)]  # curves that coincide take turns
    labels = {0: f"{high:.3f}", HEIGHT - 1: f"{low:.3f}"}
    lines = [f"{labels.get(row, ''):>{LABEL - 1}} {''.join(line)}".rstrip() for row, line in enumerate(field)]
    begin, end = f"{axis} {left:,.0f}", f"{right:,.0f}"
    return "\n".join([*lines, " " * LABEL + begin + end.rjust(WIDTH - len(begin))])


def heights(curve: Points, left: float, right: float) -> list[float | None]:
    """The curve's value at each column: the mean of its points there, or a straight line between its neighbours."""
    if not curve:
        return [None] * WIDTH
    span = (right - left) or 1.0
    found: dict[int, list[float]] = {}
    for x, y in curve:
        found.setdefault(round((x - left) / span * (WIDTH - 1)), []).append(y)
    means = {place: sum(values) / len(values) for place, values in found.items()}
    return [between(means, place) for place in range(WIDTH)]


def between(means: dict[int, float], place: int) -> float | None:
    """The value at a place, by the nearest known ones on both sides; None beyond the ends."""
    before = max((one for one in means if one <= place), default=None)
    after = min((one for one in means if one >= place), default=None)
    if before is None or after is None:
        return None
    share = (place - before) / (after - before) if after > before else 0.0
    return means[before] + share * (means[after] - means[before])


def marks_by_row(values: Sequence[float | None], low: float, high: float) -> dict[int, str]:
    """Which marks stand in which row of a column, row 0 on top."""
    span = (high - low) or 1.0
    marks: dict[int, str] = {}
    for value, mark in zip(values, MARKS, strict=False):
        if value is not None:
            row = round((high - value) / span * (HEIGHT - 1))
            marks[row] = marks.get(row, "") + mark
    return marks


def check_can_draw(path: Path | None) -> None:
    """Refuse a picture that could not be drawn, before any work."""
    if path is not None and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--png needs matplotlib: pip install 'foretell[plot]'")


def write_comparison(path: Path, runs: Sequence[tuple[str, Metrics]]) -> None:
    """Training and validation loss of named runs as a PNG, each run in one colour."""
    from matplotlib.figure import Figure  # an optional dependency, and slow to import

    axis = shared_axis([metrics for _, metrics in runs])
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for number, (name, metrics) in enumerate(runs):
        colour = f"C{number % 10}"
        training, validation = (points_of(metrics, key, axis) for key in ("loss", "validation_loss"))
        if training:
            axes.plot(*zip(*training, strict=True), color=colour, alpha=0.35, linewidth=1)
        axes.plot(
            *zip(*validation or [(math.nan, math.nan)], strict=True), "o-", color=colour, label=name, ms=3, lw=1.3
        )
    axes.set(xlabel=axis, ylabel="loss (nats per token); training pale, validation dotted")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise OutputError(f"could not write {path}: {error.strerror or error}") from error

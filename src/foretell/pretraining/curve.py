"""The loss curve, as a picture and as block characters."""

from __future__ import annotations

import importlib.util
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

BLOCKS = " ▁▂▃▄▅▆▇█"


def block_curve(metrics: list[dict[str, Any]], key: str, width: int = 60, height: int = 6) -> str:
    """The values of a metric over the steps, `height` lines of block characters with the scale on the left."""
    points = [(one["step"], one[key]) for one in metrics if one.get(key) is not None and math.isfinite(one[key])]
    if len(points) < 2:
        return ""
    columns = _columns(points, min(width, len(points)))
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    eighths = [max(1, round((value - low) / span * height * 8)) for value in columns]
    lines = []
    for row in reversed(range(height)):
        label = {height - 1: f"{high:6.2f} ", 0: f"{low:6.2f} "}.get(row, " " * 7)
        lines.append(label + "".join(BLOCKS[min(8, max(0, level - 8 * row))] for level in eighths))
    first, last = points[0][0], points[-1][0]
    axis = f"step {first:,}"
    lines.append(" " * 7 + axis + f"{last:,}".rjust(max(1, len(columns) - len(axis))))
    return "\n".join(line.rstrip() for line in lines)


def write_curve(path: Path, metrics: list[dict[str, Any]], title: str) -> bool:
    """Draw loss and validation loss over the steps as a PNG; False where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure  # an optional dependency, and slow to import

    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    for key, label, style in (("loss", "training", "-"), ("validation_loss", "validation", "o-")):
        points = [(one["step"], one[key]) for one in metrics if one.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, linewidth=1.2, markersize=3)
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    return True


def _columns(points: list[tuple[int, float]], width: int) -> list[float]:
    """The mean value in each of `width` equal stretches of the points."""
    edges = [round(index * len(points) / width) for index in range(width + 1)]
    stretches = [points[start:end] for start, end in pairwise(edges)]
    return [sum(value for _, value in stretch) / len(stretch) for stretch in stretches]

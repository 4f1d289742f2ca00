"""Loss curves of one or several runs: as characters for the terminal, and as a PNG."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

from foretell.errors import Interrupted, OutputError, UsageError
from foretell.runs.run import CURVE, Run
from foretell.storage.files import SOFTWARE, new_files
from foretell.typesetting.text import printable, shorten

MARKS = "●○▲△■□◆◇"  # one per run, so that runs can be told apart without colours
WIDTH, HEIGHT = 70, 14  # size of the plot area in characters, for 80 columns
LABEL = 8  # columns of the scale on the left
FEWEST_COLUMNS = 16
METRICS = {"validation_loss": "validation loss", "loss": "training loss"}

Points = list[tuple[float, float]]
Metrics = list[dict[str, Any]]

logger = logging.getLogger(__name__)


def shared_metric(runs: Sequence[Metrics]) -> str:
    """The validation loss if every run has at least two values, else the training loss."""
    has_all = all(len(points_of(metrics, "validation_loss", "step")) > 1 for metrics in runs if metrics)
    return "validation_loss" if has_all else "loss"


def shared_axis(runs: Sequence[Metrics]) -> str:
    """Steps if all runs have the same number of tokens per step, else tokens."""
    lines = [metrics[-1] for metrics in runs if metrics]
    per_step = {round(line["tokens"] / line["step"], 3) for line in lines if line.get("tokens")}
    return "step" if len(per_step) < 2 else "tokens"


def losses_of(runs: Sequence[Run]) -> str:
    """The words after `loss`: the unit for language models, or the selection score of fine-tuning runs; else empty."""
    tunings = [run.record().config.get("finetuning") for run in runs]
    scores = {tuning and tuning.get("best_by", "loss") for tuning in tunings}
    if len(scores) != 1 or "loss" in scores:
        return ""
    (score,) = scores
    return f", where validation is 1 - {score}" if score else ", in nats per token"


def points_of(metrics: Metrics, key: str, axis: str) -> Points:
    """A metric over steps or tokens, without values that are absent or not finite."""
    values = ((line.get(axis), line.get(key)) for line in metrics)
    return [(x, y) for x, y in values if x is not None and y is not None and math.isfinite(y)]


def plot(curves: Sequence[Points], axis: str, terminal_columns: int = LABEL + WIDTH) -> str:
    """Curves, at most one per mark, with their scale, in at most 80 columns; empty without any points."""
    points = [point for curve in curves for point in curve]
    if not points:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    width = max(FEWEST_COLUMNS, min(WIDTH, terminal_columns - LABEL))
    columns = [heights(curve, left, right, width) for curve in curves]
    known = [y for curve in columns for y in curve if y is not None]
    low, high = min(known), max(known)
    field = [[" "] * width for _ in range(HEIGHT)]
    for column in range(width):
        for row, marks in marks_by_row([curve[column] for curve in columns], low, high).items():
            field[row][column] = marks[column % len(marks)]  # coinciding curves alternate
    labels = {0: f"{high:.3f}", HEIGHT - 1: f"{low:.3f}"}
    lines = [f"{labels.get(row, ''):>{LABEL - 1}} {''.join(line)}".rstrip() for row, line in enumerate(field)]
    begin, end = f"{axis} {left:,.0f}", f"{right:,.0f}"
    return "\n".join([*lines, " " * LABEL + begin + end.rjust(width - len(begin))])


def heights(curve: Points, left: float, right: float, width: int = WIDTH) -> list[float | None]:
    """The curve's value in each column: the mean of its points there, or interpolated between its neighbours."""
    if not curve:
        return [None] * width
    import numpy as np  # imported here, because a table of runs does not need it

    span = (right - left) or 1.0
    by_column: dict[int, list[float]] = {}
    for x, y in curve:
        by_column.setdefault(round((x - left) / span * (width - 1)), []).append(y)
    known = sorted(by_column)
    means = [sum(by_column[column]) / len(by_column[column]) for column in known]
    values = np.interp(np.arange(width), known, means, left=math.nan, right=math.nan)
    return [None if math.isnan(value) else value for value in values.tolist()]


def marks_by_row(values: Sequence[float | None], low: float, high: float) -> dict[int, str]:
    """The marks in each row of a column, row 0 on top."""
    span = (high - low) or 1.0
    marks: dict[int, str] = {}
    for value, mark in zip(values, MARKS, strict=False):
        if value is not None:
            row = round((high - value) / span * (HEIGHT - 1))
            marks[row] = marks.get(row, "") + mark
    return marks


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def check_can_draw(path: Path | None) -> None:
    """Refuse a file name that does not end in .png, and a missing matplotlib, before any work."""
    if path is not None and path.suffix.lower() != ".png":
        raise UsageError(f"{path}: pictures are PNG; give a name that ends in .png")
    if path is not None and not has_matplotlib():
        raise UsageError("--png needs matplotlib: pip install 'foretell[plot]'")


def write_png(path: Path, runs: Sequence[tuple[str, Metrics]], warning: str = "", losses: str = "") -> None:
    """Write training and validation loss of named runs as a PNG, one colour per run, with a warning as the title."""
    axis = shared_axis([metrics for _, metrics in runs])
    with picture(path, (8, 4.5)) as figure:
        axes = figure.subplots()
        for index, (name, metrics) in enumerate(runs):
            colour, label = f"C{index}", picture_text(shorten(name, 60, from_end=True))  # longer labels leave no room
            training, validation = (points_of(metrics, key, axis) for key in ("loss", "validation_loss"))
            if training:
                axes.plot(
                    *zip(*training, strict=True), color=colour, alpha=0.35, linewidth=1, label=f"{label}, training"
                )
            if validation:
                axes.plot(*zip(*validation, strict=True), "o-", color=colour, label=f"{label}, held-out", ms=3, lw=1.3)
                best = min(validation, key=itemgetter(1))
                axes.plot(*best, "*", color=colour, label=f"lowest: {best[1]:.4g} at {axis} {best[0]:,.0f}", ms=11)
        axes.set(xlabel=axis, ylabel=f"loss{losses}")
        axes.set_title(picture_text(warning), color="firebrick", fontsize=9)
        axes.xaxis.get_major_locator().set_params(integer=True)  # otherwise five steps have ticks at 1.5 and 2.5
        axes.grid(alpha=0.3)
        axes.legend()


def picture_text(text: str) -> str:
    """A name or label for a picture: matplotlib has no signs for control characters, and reads formulas between $."""
    return printable(text).replace("$", r"\$")


@contextmanager
def picture(path: Path, size: tuple[float, float], dpi: int = 150) -> Iterator[Any]:
    """A figure of matplotlib for the block, then written as a PNG, atomically; an `OutputError` if either fails."""
    try:
        from matplotlib.figure import Figure  # an optional dependency, and slow to import
    except Interrupted:
        raise
    except Exception as error:  # a broken installation can raise anything
        raise OutputError(f"could not draw {path}: matplotlib cannot be imported ({error})") from error
    figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    yield figure
    if not path.parent.is_dir():  # do not create a folder for a picture
        raise OutputError(f"could not write {path}: {path.parent} is not a folder")
    with new_files(path) as (temporary,):
        figure.savefig(temporary, format="png", metadata=SOFTWARE)


def draw_curve(run: Run) -> None:
    draw_if_possible(
        lambda: write_png(run.directory / CURVE, [(run.name, run.metrics.records())], losses=losses_of([run]))
    )


def draw_if_possible(draw: Callable[[], None]) -> None:
    """Draw a picture of a finished run if matplotlib is installed; a failure is logged as a warning."""
    if not has_matplotlib():
        return
    try:
        draw()
    except OutputError as error:
        logger.warning("%s; the run itself is complete", " ".join(str(error).split()))

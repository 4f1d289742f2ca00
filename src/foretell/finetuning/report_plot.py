"""report.png: a confusion matrix with the calibration, or predicted against true numbers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from foretell.errors import OutputError
from foretell.files import printable_name
from foretell.session.plots import has_matplotlib, import_figure

PICTURE = "report.png"
MOST_WRITTEN = 20  # labels whose counts are written into the matrix
SHADE_LIMIT = 0.5  # of a row's share: above it, letters on the shade are white

logger = logging.getLogger(__name__)


def draw_report(directory: Path, report: dict[str, Any], numbers: tuple[np.ndarray, np.ndarray] | None) -> None:
    """Draw the report if matplotlib is installed; a failure is a warning. numbers: true and predicted ones, (N,)."""
    if not has_matplotlib():
        return
    path = directory / PICTURE
    try:
        figure = import_figure(path)(figsize=(10, 4.6), dpi=150, layout="constrained")
        if numbers is None:
            matrix, reliability = figure.subplots(1, 2)
            draw_confusion(matrix, report["labels"], np.array(report["confusion"]))
            draw_calibration(reliability, report["calibration"])
        else:
            draw_scatter(figure.subplots(), *numbers)
        figure.savefig(path, format="png")
    except OSError as error:
        logger.warning(f"could not write {path}: {error.strerror or error}; the run itself is complete")
    except OutputError as error:
        logger.warning(f"{error}; the run itself is complete")


def draw_confusion(axes: Any, labels: list[str], matrix: np.ndarray) -> None:
    """Shares of each true label by predicted label, with the counts."""
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [printable_name(label)[:16].replace("$", r"\$") for label in labels]
    if len(labels) <= MOST_WRITTEN:
        axes.set_xticks(range(len(labels)), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(labels)), names)
        for (row, column), count in np.ndenumerate(matrix):
            color = "white" if shares[row, column] > SHADE_LIMIT else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=8)
    axes.set(xlabel="predicted", ylabel="true", title="confusion on the held-out examples")


def draw_calibration(axes: Any, calibration: dict[str, Any]) -> None:
    """Accuracy over confidence, with the size of each bin."""
    bins = calibration["bins"]
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="calibrated")
    confidence, accuracy = [each["confidence"] for each in bins], [each["accuracy"] for each in bins]
    axes.plot(confidence, accuracy, "o-", color="C0", label="model")
    for each in bins:
        axes.annotate(
            f"{each['examples']:,}",
            (each["confidence"], each["accuracy"]),
            textcoords="offset points",
            xytext=(4, -10),
            fontsize=7,
        )
    error = calibration["expected_calibration_error"]
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="confidence", ylabel="share that is right")
    axes.set_title(f"calibration, expected error {error:.3f}")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")


def draw_scatter(axes: Any, true: np.ndarray, predicted: np.ndarray) -> None:
    """Predicted over true numbers."""
    low, high = min(true.min(), predicted.min()), max(true.max(), predicted.max())
    axes.plot([low, high], [low, high], color="0.6", linestyle="--", linewidth=1)
    axes.plot(true, predicted, ".", color="C0", alpha=0.5)
    axes.set(xlabel="true", ylabel="predicted", title="held-out examples")
    axes.grid(alpha=0.3)

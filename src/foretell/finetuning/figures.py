"""Metrics of predictions in NumPy, and their plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from foretell.session.plots import picture_text
from foretell.typesetting.text import shorten

BINS = 10  # bins of confidence for the calibration
MOST_WRITTEN = 20  # with more labels, a confusion matrix shows no counts
MOST_LARGE = 12  # with more labels, letters are small
LONGEST_NAME = 16  # letters; with longer labels, columns have numbers instead of names
CELL_POINTS = 320.0  # letter size times letters per row that fit into a confusion matrix
LOW = 0.08  # for an accuracy below this, the count is above the bar, to keep clear of the axis
SHADE_LIMIT = 0.5  # above this share, letters are white on the dark shade
NAMES = {"macro_f1": "macro F1", "span_f1": "span F1", "rmse": "RMSE", "mae": "MAE", "r2": "R2"}


def describe_figures(figures: Mapping[str, float]) -> str:
    """`accuracy 0.812, macro F1 0.790`."""
    return ", ".join(f"{NAMES.get(name, name)} {value:.3f}" for name, value in figures.items())


def label_figures(logits: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Loss in nats, accuracy and macro F1 of logits (N, C) for the indices (N,) of the right ones."""
    logprobs = log_softmax(logits)
    chosen = logits.argmax(1)
    return {
        "loss": float(-logprobs[np.arange(len(targets)), targets].mean()),
        "accuracy": float((chosen == targets).mean()),
        "macro_f1": macro_f1(confusion(chosen, targets, logits.shape[1])),
    }


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities (N, C); minus infinity stays."""
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def confusion(chosen: np.ndarray, targets: np.ndarray, count: int) -> np.ndarray:
    """The confusion matrix (C, C): counts of examples by true class (row) and predicted class (column)."""
    return np.bincount(targets * count + chosen, minlength=count * count).reshape(count, count)


def class_scores(matrix: np.ndarray) -> list[dict[str, float]]:
    """The scores of each class of a confusion matrix (C, C)."""
    hits, predicted, present = np.diag(matrix), matrix.sum(0), matrix.sum(1)
    return [scores(*counts) for counts in zip(hits.tolist(), predicted.tolist(), present.tolist(), strict=True)]


def scores(hits: int, predicted: int, present: int) -> dict[str, float]:
    """Precision, recall, F1 and number of examples of a class; 0 if there are no predictions or no examples."""
    precision, recall = hits / predicted if predicted else 0.0, hits / present if present else 0.0
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return {"precision": precision, "recall": recall, "f1": f1, "examples": present}


def macro_f1(matrix: np.ndarray) -> float:
    """The mean F1 of the classes with predictions or examples."""
    scores = class_scores(matrix)
    used = (matrix.sum(0) + matrix.sum(1)) > 0
    return float(np.mean([score["f1"] for score, is_used in zip(scores, used, strict=True) if is_used]))


def class_report(logits: np.ndarray, targets: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """The details of a report on classes: the confusion, the scores of each class, the calibration."""
    matrix = confusion(logits.argmax(1), targets, len(names))
    return {
        "labels": list(names),
        "confusion": matrix.tolist(),
        "by_label": dict(zip(names, class_scores(matrix), strict=True)),
        "calibration": calibration(logits, targets),
    }


def calibration(logits: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    """Accuracy by confidence, in bins, and the expected calibration error.

    The error is the mean difference between confidence and accuracy, weighted by the bins' sizes (Guo et al. 2017,
    "On Calibration of Modern Neural Networks", equation 3).
    """
    probabilities = np.exp(log_softmax(logits))
    confidence, right = probabilities.max(1), logits.argmax(1) == targets
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    rows = [
        {
            "from": index / BINS,
            "to": (index + 1) / BINS,
            "examples": int((bins == index).sum()),
            "confidence": float(confidence[bins == index].mean()),
            "accuracy": float(right[bins == index].mean()),
        }
        for index in range(BINS)
        if (bins == index).any()
    ]
    error = sum(row["examples"] * abs(row["confidence"] - row["accuracy"]) for row in rows) / len(targets)
    return {"expected_calibration_error": float(error), "bins": rows}


def number_figures(values: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Mean absolute error, root mean squared error and R2 of predicted numbers (N,)."""
    errors = values - targets
    spread = float(((targets - targets.mean()) ** 2).sum())
    return {
        "rmse": float(np.sqrt((errors**2).mean())),
        "mae": float(np.abs(errors).mean()),
        "r2": 1 - float((errors**2).sum()) / spread if spread else 0.0,
    }


def draw_confusion(axes: Any, labels: list[str], matrix: np.ndarray) -> None:
    """Shares of each true label by predicted label, with the counts."""
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    where = " (index in the labels of report.json)"
    if len(labels) <= MOST_WRITTEN:
        where, is_long = "", max(map(len, labels)) > LONGEST_NAME
        names = [f"{index}  {shorten(label, 24)}" if is_long else label for index, label in enumerate(labels)]
        names = list(map(picture_text, names))
        axes.set_yticks(range(len(labels)), names)
        axes.set_xticks(range(len(labels)))  # shortened names may be equal, so columns have numbers
        if not is_long:
            axes.set_xticklabels(names, rotation=45, ha="right", rotation_mode="anchor")
        axes.tick_params(labelsize=8 if len(labels) > MOST_LARGE else 10)
        size = min(8.0, CELL_POINTS / (len(labels) * len(f"{matrix.max():,}")))
        for (row, column), count in np.ndenumerate(matrix):
            color = "white" if shares[row, column] > SHADE_LIMIT else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=size)
    axes.set(xlabel=f"predicted{where}", ylabel=f"true{where}", title="confusion on the held-out examples")


def draw_calibration(axes: Any, calibration: dict[str, Any]) -> None:
    """Accuracy over confidence, with the size of each bin."""
    bins = calibration["bins"]
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="calibrated")
    confidence, accuracy = [each["confidence"] for each in bins], [each["accuracy"] for each in bins]
    axes.plot(confidence, accuracy, "o-", color="C0", label="model, with the number of examples")
    for each in bins:
        axes.annotate(
            f"{each['examples']:,}",
            (each["confidence"], each["accuracy"]),
            textcoords="offset points",
            xytext=(4, -10 if each["accuracy"] > LOW else 6),
            fontsize=6,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )
    error = calibration["expected_calibration_error"]
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="confidence", ylabel="share that is right")
    axes.set_title(f"calibration, expected error {error:.3f}")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")


def draw_scatter(axes: Any, true: np.ndarray, predicted: np.ndarray) -> None:
    low, high = min(true.min(), predicted.min()), max(true.max(), predicted.max())
    axes.plot([low, high], [low, high], color="0.6", linestyle="--", linewidth=1)
    axes.plot(true, predicted, ".", color="C0", alpha=0.5)
    axes.set(xlabel="true", ylabel="predicted", title="held-out examples")
    axes.grid(alpha=0.3)

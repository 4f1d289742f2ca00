"""Figures of predictions against targets: of labels, of numbers, and the baselines that they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from foretell.finetuning.settings import HeadSettings

BINS = 10  # of confidence, for the calibration


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
    """How often (C, C) the class of the row was predicted as the class of the column."""
    return np.bincount(targets * count + chosen, minlength=count * count).reshape(count, count)


def class_scores(matrix: np.ndarray) -> list[dict[str, float]]:
    """Precision, recall, F1 and number of examples of each class; 0 where nothing was predicted or is there."""
    hits, predicted, present = np.diag(matrix), matrix.sum(0), matrix.sum(1)
    precision = np.divide(hits, predicted, out=np.zeros(len(hits)), where=predicted > 0)
    recall = np.divide(hits, present, out=np.zeros(len(hits)), where=present > 0)
    both = precision + recall
    f1 = np.divide(2 * precision * recall, both, out=np.zeros(len(hits)), where=both > 0)
    return [
        {"precision": float(p), "recall": float(r), "f1": float(f), "examples": int(n)}
        for p, r, f, n in zip(precision, recall, f1, present, strict=True)
    ]


def macro_f1(matrix: np.ndarray) -> float:
    """The mean F1 of the classes that were predicted or are there."""
    scores = class_scores(matrix)
    used = (matrix.sum(0) + matrix.sum(1)) > 0
    return float(np.mean([score["f1"] for score, is_used in zip(scores, used, strict=True) if is_used]))


def calibration(logits: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    """How often predictions of a confidence are right, in bins, and the expected calibration error.

    The error is the mean distance between confidence and accuracy, weighted by the bins' sizes (Guo et al. 2017,
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


def on_scale(values: np.ndarray, settings: HeadSettings) -> np.ndarray:
    """Outputs or targets (N,) as numbers of the data."""
    return settings.mean + settings.deviation * values


def evaluation_figures(outputs: np.ndarray, targets: np.ndarray, settings: HeadSettings) -> dict[str, float]:
    """The figures of outputs (N, C) on the scale of the data."""
    if settings.is_number:
        return number_figures(on_scale(outputs[:, 0], settings), on_scale(targets, settings))
    return label_figures(outputs, targets.astype(int))


def baseline_figures(train: Sequence[float], targets: np.ndarray, settings: HeadSettings) -> dict[str, Any]:
    """What always predicting the most frequent label, or the mean, of the training examples gives."""
    if settings.is_number:
        values = on_scale(targets, settings)
        mean = float(on_scale(np.array(train), settings).mean())
        return {"rule": "the mean", "value": mean, **number_figures(np.full(len(values), mean), values)}
    counts = np.bincount(np.array(train, dtype=int))
    majority = int(counts.argmax())
    count = max(len(settings.labels), int(targets.max()) + 1, majority + 1)
    chosen = np.full(len(targets), majority)
    label = settings.labels[majority] if settings.labels else str(majority)
    matrix = confusion(chosen, targets.astype(int), count)
    accuracy = float((chosen == targets).mean())
    return {"rule": "the most frequent label", "label": label, "accuracy": accuracy, "macro_f1": macro_f1(matrix)}


def evaluation_report(outputs: np.ndarray, targets: np.ndarray, settings: HeadSettings) -> dict[str, Any]:
    """All figures of outputs (N, C) for the targets (N,)."""
    figures: dict[str, Any] = dict(evaluation_figures(outputs, targets, settings))
    if settings.is_number:
        return figures
    indices = targets.astype(int)
    names = settings.labels or tuple(str(index) for index in range(outputs.shape[1]))
    matrix = confusion(outputs.argmax(1), indices, outputs.shape[1])
    scores = dict(zip(names, class_scores(matrix), strict=True))
    own = {"labels": list(names), "confusion": matrix.tolist(), "by_label": scores}
    return {**figures, **own, "calibration": calibration(outputs, indices)}

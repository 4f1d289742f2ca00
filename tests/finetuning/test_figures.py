"""Figures against scikit-learn's definitions, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.finetuning.figures import (
    baseline_figures,
    calibration,
    confusion,
    evaluation_report,
    label_figures,
    number_figures,
)
from foretell.finetuning.settings import Columns, HeadSettings

LOGITS = np.log(np.array([[0.92, 0.08], [0.61, 0.39], [0.17, 0.83], [0.74, 0.26]]))
TARGETS = np.array([0, 0, 1, 1])


def test_accuracy_f1_and_confusion() -> None:
    figures = label_figures(LOGITS, TARGETS)
    assert figures["accuracy"] == 0.75
    assert figures["loss"] == pytest.approx(-np.log([0.92, 0.61, 0.83, 0.26]).mean())
    assert figures["macro_f1"] == pytest.approx((0.8 + 2 / 3) / 2)  # precision 2/3, recall 1; precision 1, recall 1/2
    assert confusion(LOGITS.argmax(1), TARGETS, 2).tolist() == [[2, 0], [1, 1]]


def test_the_calibration_error_is_the_mean_distance() -> None:
    report = calibration(LOGITS, TARGETS)
    assert report["expected_calibration_error"] == pytest.approx((0.08 + 0.39 + 0.17 + 0.74) / 4)
    assert sum(each["examples"] for each in report["bins"]) == 4


def test_numbers() -> None:
    figures = number_figures(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
    assert figures == {"rmse": pytest.approx((1 / 3) ** 0.5), "mae": pytest.approx(1 / 3), "r2": pytest.approx(0.5)}


def test_baselines_and_the_report() -> None:
    columns = Columns(texts=("text",))
    labels = HeadSettings(task="classify", labels=("x", "y"), columns=columns)
    assert baseline_figures([1, 1, 0], TARGETS, labels)["label"] == "y"
    assert baseline_figures([1, 1, 0], TARGETS, labels)["accuracy"] == 0.5
    assert evaluation_report(LOGITS, TARGETS, labels)["by_label"]["y"]["recall"] == 0.5
    number = HeadSettings(task="regress", mean=10, deviation=2, columns=columns)
    assert evaluation_report(np.array([[1.0], [0.0]]), np.array([1.0, -1.0]), number)["mae"] == 1.0  # 0 and 2
    assert baseline_figures([1.0, -1.0], np.array([1.0, -1.0]), number)["r2"] == 0

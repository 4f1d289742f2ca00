"""The first weights of a head: a ridge regression whose strength is chosen by leaving one example out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foretell.finetuning.finetune import FinetuneTraining
from foretell.finetuning.kind import Kind, kind_of
from foretell.finetuning.probe import STRENGTHS, ridge
from foretell.finetuning.settings import Columns, HeadSettings
from foretell.finetuning.task import FinetuneTask
from foretell.session.protocol import start_session
from foretell.session.reporter import Reporter
from foretell.session.start import Start

LABELS = kind_of(HeadSettings(task="classify", labels=("a", "b", "c"), columns=Columns(texts=("text",))))
NUMBERS = kind_of(HeadSettings(task="regress", columns=Columns(texts=("text",))))


def make_data(count: int = 60, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (N, 8), and the index of the largest of three noisy linear functions of each."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(count, 8))
    scores = vectors @ rng.normal(size=(8, 3)) + noise * rng.normal(size=(count, 3))
    return vectors, scores.argmax(1)


def test_the_probe_of_labels_generalizes_and_its_probabilities_are_calibrated() -> None:
    vectors, labels = make_data(400)
    weight = ridge(vectors[:200], LABELS, [(float(label),) for label in labels[:200]])
    figures = LABELS.figures(list(vectors[200:] @ weight.T), [(float(label),) for label in labels[200:]])
    assert figures["accuracy"] > 0.8 and figures["loss"] < 0.55


@pytest.mark.parametrize("noise", [0.01, 10.0])
def test_the_strength_is_the_best_of_regressions_that_each_leave_one_example_out(noise: float) -> None:
    vectors, _ = make_data(24)
    rng = np.random.default_rng(2)
    numbers = vectors @ rng.normal(size=8) + noise * rng.normal(size=24)
    strengths = [share * len(vectors) * vectors.var(0).sum() for share in STRENGTHS]

    def solve(rows: np.ndarray, strength: float) -> np.ndarray:
        gram = vectors[rows].T @ vectors[rows] + strength * np.eye(8)
        return np.linalg.solve(gram, vectors[rows].T @ numbers[rows])

    def error(strength: float) -> float:
        others = [np.delete(np.arange(24), row) for row in range(24)]
        return sum((vectors[row] @ solve(others[row], strength) - numbers[row]) ** 2 for row in range(24))

    expected = solve(np.arange(24), min(strengths, key=error))
    weight = ridge(vectors, NUMBERS, [(float(number),) for number in numbers])
    scale = weight[0] @ expected / (expected @ expected)
    assert np.allclose(weight[0], scale * expected) and scale == pytest.approx(1)


@pytest.mark.parametrize("kind", [LABELS, NUMBERS])
def test_vectors_of_zeros_have_a_finite_probe(kind: Kind) -> None:
    assert np.isfinite(ridge(np.zeros((4, 8)), kind, [(0.0,), (1.0,), (1.0,), (0.0,)])).all()


def test_only_the_head_of_a_large_model_starts_from_a_probe(
    start: Start, review_file: Path, tmp_path: Path, tiny_request, monkeypatch: pytest.MonkeyPatch
) -> None:
    def task(name: str) -> FinetuneTask:
        training = FinetuneTraining(tiny_request(review_file, tmp_path / name, "classify", start=start))
        return start_session(training, Reporter()).task

    def accuracy(task: FinetuneTask) -> float:
        return float(task.evaluate(torch.float32)["accuracy"])

    random = task("random")
    assert not random.starts_trained
    before = accuracy(random)
    monkeypatch.setattr("foretell.finetuning.probe.SMALL_WIDTH", 16)
    probed = task("probed")
    assert accuracy(probed) > 0.8 > before
    assert probed.starts_trained  # so that step 0 may remain the best checkpoint

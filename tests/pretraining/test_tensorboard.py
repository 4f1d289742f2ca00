"""What TensorBoard is told: the metrics of metrics.jsonl, each step once, also after a resumption."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.cli.main import run
from foretell.errors import UsageError
from foretell.pretraining.reporter import Reporter, Reporters
from foretell.pretraining.tensorboard import TensorBoardReporter

TEXT = "The cat sat on the mat. The dog sat on the log.\n" * 60
SETTINGS: dict[str, Any] = {
    "size": "toy",
    "model": {"width": 16, "context_length": 32},
    "training": {"steps": 4, "batch_size": 4, "log_every": 1, "checkpoint_every": 2, "keep_checkpoints": 9},
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "x.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "x.txt"


def told(out: Path) -> tuple[dict[str, list[tuple[int, float]]], list[str]]:
    """Every scalar over its steps, and the names of the texts."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(out / "tensorboard")).Reload()
    scalars = {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return scalars, events.Tags()["tensors"]


def train(text: Path, out: Path, **options: Any) -> None:
    pytest.importorskip("tensorboard")
    with TensorBoardReporter(out) as reporter:
        foretell.train(text, out, reporter=reporter, **SETTINGS, **options)


def test_it_is_told_what_the_metrics_say(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(text, out)
    scalars, texts = told(out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in scalars["loss"]] == [1, 2, 3, 4]
    for name, found in scalars.items():
        expected = [(line["step"], line[name]) for line in lines if line[name] is not None]
        assert found == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
    assert {"loss", "validation_loss", "learning_rate", "gradient_norm", "peak_memory_bytes"} <= set(scalars)
    assert any(name.startswith("sample/") for name in texts)


def test_a_resumed_run_tells_no_step_twice(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(text, out)
    for path in (out / "checkpoints" / "step-000004").iterdir():
        path.unlink()
    (out / "checkpoints" / "step-000004").rmdir()
    train(text, out, resume=True)
    assert [step for step, _ in told(out)[0]["loss"]] == [1, 2, 3, 4]


def test_a_run_without_it_has_no_such_folder(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--size", "toy", "--kind", "bytes", "--steps", "1", "--training.batch-size", "2"]
    assert run(["train", str(text), *options, "--out", "without"]) == 0
    assert not Path("without/tensorboard").exists()
    pytest.importorskip("tensorboard")
    assert run(["train", str(text), *options, "--out", "with", "--report", "tensorboard"]) == 0
    assert list(Path("with/tensorboard").iterdir())


def test_without_the_package_it_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'foretell\[track\]'"):
        TensorBoardReporter(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_several_reporters_hear_the_same() -> None:
    class Ear(Reporter):
        def __init__(self) -> None:
            self.heard: list[Any] = []

        def note(self, text: str) -> None:
            self.heard.append(text)

        def metrics(self, metrics: dict[str, Any], steps: int) -> None:
            self.heard.append((metrics, steps))

        def sample(self, step: int, prompt: str, continuation: str) -> None:
            self.heard.append((step, prompt, continuation))

    ears = [Ear(), Ear()]
    both = Reporters(ears)
    both.note("a")
    both.metrics({"step": 1}, 2)
    both.sample(1, "b", "c")
    assert ears[0].heard == ears[1].heard == ["a", ({"step": 1}, 2), (1, "b", "c")]

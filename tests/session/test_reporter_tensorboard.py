"""Reporters: TensorBoard gets the metrics of metrics.jsonl, each step once, also after resuming."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, cast

import pytest

import foretell
from foretell.cli.main import run
from foretell.errors import UsageError
from foretell.session.reporter import Reporter, Reporters, TensorBoardReporter
from foretell.session.task import Task

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


def events_of(out: Path) -> tuple[dict[str, list[tuple[int, float]]], list[str]]:
    """Every scalar over its steps, and the names of the texts."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(out / "tensorboard")).Reload()
    scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return scalars, events.Tags()["tensors"]


def train(text: Path, out: Path, **options: Any) -> None:
    pytest.importorskip("tensorboard")
    with TensorBoardReporter(out) as reporter:
        foretell.train(text, out, reporter=reporter, **SETTINGS, **options)


def test_the_events_are_those_of_the_metrics(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(text, out)
    scalars, texts = events_of(out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in scalars["loss"]] == [1, 2, 3, 4]
    for name, points in scalars.items():
        expected = [(line["step"], line[name]) for line in lines if line[name] is not None]
        assert points == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
    assert {"loss", "validation_loss", "learning_rate", "gradient_norm", "peak_memory_bytes"} <= set(scalars)
    assert any(name.startswith("sample/") for name in texts)


def test_a_resumed_run_writes_no_step_twice(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(text, out)
    for path in (out / "checkpoints" / "step-000004").iterdir():
        path.unlink()
    (out / "checkpoints" / "step-000004").rmdir()
    train(text, out, resume=True)
    assert [step for step, _ in events_of(out)[0]["loss"]] == [1, 2, 3, 4]


def test_the_folder_is_made_only_on_request(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--size", "toy", "--kind", "bytes", "--steps", "1", "--training.batch-size", "2"]
    assert run(["train", str(text), *options, "--out", "without"]) == 0
    assert not Path("without/tensorboard").exists()
    pytest.importorskip("tensorboard")
    assert run(["train", str(text), *options, "--out", "with", "--report", "tensorboard"]) == 0
    assert list(Path("with/tensorboard").iterdir())


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'foretell\[track\]'"):
        TensorBoardReporter(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_event_is_passed_on_to_all_reporters() -> None:
    class Recorder(Reporter):
        def __init__(self) -> None:
            self.events: list[Any] = []

        def tokenizing(self, done: int, total: int, seconds: float) -> None:
            self.events.append((done, total, seconds))

        def ready(self, task: Task) -> None:
            self.events.append(task)

        def metrics(self, metrics: dict[str, Any], steps: int) -> None:
            self.events.append((metrics, steps))

        def sample(self, step: int, prompt: str, continuation: str) -> None:
            self.events.append((step, prompt, continuation))

    recorders, task = [Recorder(), Recorder()], cast(Task, object())
    both = Reporters(recorders)
    both.tokenizing(1, 2, 3.0)
    both.ready(task)
    both.metrics({"step": 1}, 2)
    both.sample(1, "b", "c")
    assert recorders[0].events == recorders[1].events == [(1, 2, 3.0), task, ({"step": 1}, 2), (1, "b", "c")]

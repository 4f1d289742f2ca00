"""A session trains any task: a regression without text trains, validates, saves, stops and resumes."""

from __future__ import annotations

import ast
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import foretell.session
from foretell.errors import CheckpointError, Interrupted
from foretell.runs.checkpoint import Checkpoint, list_checkpoints
from foretell.runs.record import MEASURED
from foretell.runs.run import Run
from foretell.session.reporter import Reporter, Reporters
from foretell.session.session import Session

OPTIMIZERS = ["adamw", "muon", "sgd"]


def final_files(run: Run) -> dict[str, bytes]:
    """The weights and moments of the last checkpoint."""
    directory = run.at("last").directory
    return {name: (directory / name).read_bytes() for name in ("linear.bin", "optimizer.safetensors")}


def curve(run: Run) -> list[dict[str, Any]]:
    """The metrics that do not depend on the machine."""
    return [{key: value for key, value in line.items() if key not in MEASURED} for line in run.metrics.records()]


def cut(run: Run, after: int) -> None:
    """Remove the checkpoints after a step, as if the process had died there."""
    for checkpoint in list_checkpoints(run.checkpoints):
        if checkpoint.step > after:
            shutil.rmtree(checkpoint.directory)


def test_a_task_without_text_learns_and_is_saved(sessions: Any) -> None:
    session = sessions.start(steps=40, learning_rate=0.1)
    session.go()
    run = session.run
    lines = run.metrics.records()
    assert lines[-1]["step"] == 40
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"]
    names = {path.name for path in run.at("last").directory.iterdir()}
    assert names == {"linear.bin", "optimizer.safetensors", "training.json", "manifest.json"}
    run.at("last").verify()
    assert not list(run.samples.iterdir())  # this task has none
    record = run.record()
    assert (record.data, record.device, record.dtype) == (["random vectors"], "cpu", "float32")


def test_the_first_figure_is_the_validation_loss_and_the_others_keep_their_names(sessions: Any) -> None:
    session = sessions.start()
    session.go()
    evaluated = [line for line in session.run.metrics.records() if line["validation_loss"] is not None]
    assert [line["step"] for line in evaluated] == [2, 4, 6, 8]
    assert all(line["largest_error"] > line["validation_loss"] for line in evaluated)
    state = session.run.at("last").training()
    figures = {"absolute_error": state["validation_loss"], "largest_error": evaluated[-1]["largest_error"]}
    assert state["evaluation"] == figures
    assert state["inputs"] == "6"


def test_the_best_checkpoint_is_that_of_the_lowest_first_figure(sessions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = sessions.start()
    figures = iter([3.0, 1.0, 2.0, 4.0])
    monkeypatch.setattr(session.task, "evaluate", lambda dtype: {"error": next(figures), "accuracy": 0.5})
    session.go()
    assert session.run.best().step == 4
    assert session.run.at("last").step == 8


def test_the_best_evaluation_is_saved_and_the_regular_checkpoints_stay(
    sessions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions.start(evaluate_every=1, checkpoint_every=4, keep_checkpoints=2)
    figures = iter([9.0, 8.0, 1.0, 7.0, 2.0, 3.0, 4.0, 5.0])
    monkeypatch.setattr(session.task, "evaluate", lambda dtype: {"error": next(figures)})
    session.go()
    assert session.run.best().step == 3
    assert [checkpoint.step for checkpoint in list_checkpoints(session.run.checkpoints)] == [3, 4, 8]


@pytest.mark.parametrize("log_every", [1, 2, 8])
def test_every_checkpoint_has_a_line_of_metrics_with_its_figures(log_every: int, sessions: Any) -> None:
    """A checkpoint between two evaluations may be the best, so that reports name its step."""
    session = sessions.start(evaluate_every=8, checkpoint_every=3, log_every=log_every)
    session.go()
    lines = {line["step"]: line for line in session.run.metrics.records()}
    assert len(lines) == len(session.run.metrics.records())
    for checkpoint in list_checkpoints(session.run.checkpoints):
        state = checkpoint.training()
        line = lines[checkpoint.step]
        assert [line["validation_loss"], line["largest_error"]] == list(state["evaluation"].values())
    assert [step for step, line in lines.items() if line["validation_loss"] is not None] == [3, 6, 8]


@pytest.mark.parametrize("log_every", [1, 8])
def test_the_checkpoint_of_a_signal_has_a_line_of_metrics_with_its_figures(
    log_every: int, sessions: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session = sessions.start(evaluate_every=8, checkpoint_every=8, log_every=log_every)
    batch = session.task.batch

    def stopping(step: int) -> Any:
        if step == 4:
            signal.raise_signal(signal.SIGINT)
        return batch(step)

    session.task.batch = stopping
    with pytest.raises(Interrupted):
        session.go()
    lines = session.run.metrics.records()
    assert [line["step"] for line in lines] == ([1, 2, 3, 4, 5] if log_every == 1 else [5])
    state = session.run.at("last").training()
    assert [lines[-1]["validation_loss"], lines[-1]["largest_error"]] == list(state["evaluation"].values())
    sessions.resume(evaluate_every=8, checkpoint_every=8, log_every=log_every).go()
    assert "was changed or damaged" not in caplog.text


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("after", "frozen"), [(2, []), (6, []), (4, ["**.bias", "second.weight"])])
def test_resuming_is_bit_identical_to_never_stopping(
    after: int, frozen: list[str], optimizer: str, sessions: Any
) -> None:
    options = {"optimizer": optimizer, "frozen": frozen}
    whole = sessions.start("whole", **options)
    whole.go()
    cut_short = sessions.start("cut", **options)
    cut_short.go()
    cut(cut_short.run, after)
    resumed = sessions.resume("cut", **options)
    assert resumed.progress.step == after
    resumed.go()
    assert final_files(resumed.run) == final_files(whole.run)
    assert curve(resumed.run) == curve(whole.run)


def test_a_signal_saves_and_the_resumed_run_ends_the_same(sessions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sessions.start("whole")
    whole.go()
    session = sessions.start("stopped")
    log = Session.log

    signals = iter([signal.SIGINT])  # once: the checkpoint's step is logged too

    def log_and_interrupt(self: Session, progress: Any) -> None:
        log(self, progress)
        for number in signals if progress.step == 3 else ():
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "log", log_and_interrupt)
        with pytest.raises(Interrupted, match=r"stopped after step 3, checkpoint saved; resume with: .*foretell train"):
            session.go()
    assert session.run.at("last").step == 3
    resumed = sessions.resume("stopped")
    resumed.go()
    assert final_files(resumed.run) == final_files(whole.run)


def test_patience_ends_training_and_saves_the_best_model(
    sessions: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = sessions.start(steps=100, patience=2, evaluate_every=1, checkpoint_every=100, keep_checkpoints=1)
    figures = iter([3.0, 1.0, 2.0, 4.0])
    monkeypatch.setattr(session.task, "evaluate", lambda dtype: {"error": next(figures)})
    with caplog.at_level("INFO", logger="foretell"):
        session.go()
    assert "no validation loss below 1.000 in 2 evaluations" in caplog.text
    assert [checkpoint.step for checkpoint in list_checkpoints(session.run.checkpoints)] == [2, 4]


def test_a_task_without_held_out_data_is_trained(sessions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = sessions.start()
    monkeypatch.setattr(session.task, "evaluate", lambda dtype: {})
    session.go()
    assert {line["validation_loss"] for line in session.run.metrics.records()} == {None}
    assert session.run.best().step == 8


def test_the_task_is_checked_before_the_first_step_and_after_resuming(sessions: Any) -> None:
    session = sessions.start()
    assert session.task.checked == [8]
    session.go()
    assert sessions.resume().task.checked == [8]


def test_another_fingerprint_of_the_task_is_refused(sessions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = sessions.start()
    session.go()
    checkpoint = session.run.at("last")
    state = checkpoint.training() | {"inputs": "7"}
    monkeypatch.setattr(Checkpoint, "training", lambda checkpoint: state)
    with pytest.raises(CheckpointError, match="was trained with inputs 7, but this run has 6"):
        session.restore(checkpoint)


class ClosedTerminal(Reporter):
    """Counts the events that it cannot write."""

    def __init__(self) -> None:
        self.events = 0

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        self.events += 1
        raise OSError(5, "Input/output error")


def test_a_reporter_that_cannot_write_goes_quiet_and_training_goes_on(
    sessions: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session, reporter = sessions.start(), ClosedTerminal()
    session.reporter = Reporters([reporter])
    session.go()
    assert reporter.events == 1
    assert session.run.at("last").step == session.training.steps
    assert "ClosedTerminal cannot write ([Errno 5] Input/output error); training continues without it" in caplog.text


def test_a_session_imports_nothing_about_text() -> None:
    packages = "config distributed errors finding insight loading model paths planning runs"
    hashes = {"foretell.data.data_use", "foretell.evaluation.material", "foretell.evaluation.replayed_row"}  # any data
    packages += " session storage system training typesetting"
    imported = set()
    files = set(Path(foretell.session.__file__).parent.glob("*.py"))
    start = {path for path in files if path.name == "start.py"}  # a trained model has a tokenizer
    for path in files - start:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = (isinstance(node, ast.ImportFrom) and node.module) or ""
            if module.startswith("foretell.") and module not in hashes:
                imported.add(module.split(".")[1])
    assert imported == set(packages.split())


# --- frozen weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_weights_do_not_change_and_have_no_moments(optimizer: str, sessions: Any) -> None:
    session = sessions.start(optimizer=optimizer, frozen=["trunk.**"])
    before = {path: weight.detach().clone() for path, weight in session.task.model.named_parameters()}
    session.go()
    for path, weight in session.task.model.named_parameters():
        assert torch.equal(weight, before[path]) == path.startswith("trunk."), path
    moments = load_file(session.run.at("last").directory / "optimizer.safetensors")
    assert {key.rpartition(".")[0] for key in moments} == {"second.weight", "second.bias"}


def test_weights_that_the_task_froze_stay_frozen(sessions: Any, tmp_path: Path) -> None:
    task = sessions.start().task
    task.model.trunk.requires_grad_(False)
    session = sessions.session(Run.create(tmp_path / "other"), task)
    session.start()
    session.go()
    assert not task.model.trunk.weight.requires_grad
    moments = load_file(session.run.at("last").directory / "optimizer.safetensors")
    assert {key.split(".")[0] for key in moments} == {"second"}


@pytest.mark.parametrize(
    ("wanted", "device", "steps", "compiled"),
    [
        (None, "cpu", 1000, 0),
        (True, "cpu", 10, 1),
        (None, "cuda", 999, 0),
        (None, "cuda", 1000, 1),
        (False, "cuda", 1000, 0),
    ],
)
def test_on_a_gpu_long_trainings_are_compiled_unless_the_configuration_decides(
    wanted: bool | None, device: str, steps: int, compiled: int, sessions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    monkeypatch.setattr("foretell.session.session.compile_units", lambda task, batch, dtype: rows.append(len(batch)))
    session = sessions.start(compile=wanted, gradient_accumulation_steps=2, steps=steps)
    session.device = torch.device(device)
    session.compile()
    assert rows == [session.training.batch_size // 2] * compiled

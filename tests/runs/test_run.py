"""Run directories: names of checkpoints, metrics that survive a crash, and recovery from damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from foretell.config import TrainingConfig, make_section
from foretell.errors import CheckpointError, OutputError
from foretell.runs.checkpoint import Checkpoint
from foretell.runs.run import Run, is_run

Save = Callable[..., Checkpoint]


@pytest.fixture
def run(folder: Path) -> Run:
    return Run(folder.parent)


# --- making and opening ----------------------------------------------------------------------------------------------


def test_an_incomplete_record_is_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "x")
    run.write_record({"config": {}}, {})
    with pytest.raises(CheckpointError, match="has no 'data'"):
        run.record()


def test_a_new_run_is_a_run_once_its_record_is_written(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "new" / "x")
    assert not is_run(run.directory)
    record = {"config": {"model": {}}, "data": ["x"], "size": "toy", "device": "cpu", "dtype": "float32"}
    run.write_record(record, {"torch": "2"})
    assert is_run(run.directory)
    assert Run.open(run.directory).record() == record
    assert run.name == "x"
    assert json.loads((run.directory / "environment.json").read_text()) == {"torch": "2"}


def test_a_run_is_never_made_in_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(OutputError, match=r"exists; it is not a run, so give another --out"):
        Run.create(tmp_path)
    with pytest.raises(OutputError, match="exists"):
        Run.create(tmp_path / "mine.txt")
    with pytest.raises(OutputError, match="cannot create"):
        Run.create(tmp_path / "mine.txt" / "x")
    assert (tmp_path / "mine.txt").read_text() == "x"


def test_an_empty_folder_may_become_a_run(tmp_path: Path) -> None:
    assert Run.create(tmp_path).checkpoints.is_dir()


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a run: run\.json is missing"):
        Run.open(tmp_path)
    assert not is_run(tmp_path / ("x" * 1000))


FROZEN = Path(__file__).parents[1] / "frozen" / "format1" / "run"


def test_a_configuration_has_the_same_digest_under_old_and_new_names(tmp_path: Path) -> None:
    record = Run(FROZEN).record()
    checkpoint = json.loads((FROZEN / "checkpoints" / "step-000004" / "training.json").read_text())
    assert Run(FROZEN).configuration_digest() == checkpoint["configuration"]
    training = make_section(TrainingConfig, record["config"]["training"])
    record["config"]["training"] = training.model_dump(mode="json")
    assert "final_learning_rate_share" in record["config"]["training"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert Run(tmp_path).configuration_digest() == checkpoint["configuration"]


# --- naming a checkpoint ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("which", "step"), [("best", 2), ("last", 3), ("step-000001", 1)])
def test_a_checkpoint_is_named_best_last_or_by_its_step(which: str, step: int, run: Run, save: Save) -> None:
    for number, loss in enumerate([3.0, 1.0, 2.0], start=1):
        save(number, validation_loss=loss)
    assert run.at(which).step == step


def test_an_unknown_checkpoint_is_refused_with_the_known_ones(run: Run, save: Save) -> None:
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        run.at("last")
    save(5)
    with pytest.raises(CheckpointError, match="has no checkpoint 'step-5'; it has best, last, step-000005"):
        run.at("step-5")


# --- back to what is intact ------------------------------------------------------------------------------------------


def damage(checkpoint: Checkpoint, name: str = "model.safetensors") -> None:
    path = checkpoint.directory / name
    *whole, last = path.read_bytes()
    path.write_bytes(bytes([*whole, last ^ 1]))


def test_the_newest_intact_checkpoint_is_used_and_each_damaged_one_logged(
    run: Run, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    save(1)
    save(2)
    damage(save(3))
    damage(save(4), "optimizer.safetensors")
    assert run.last_intact().step == 2
    assert len(caplog.messages) == 2
    paths = ("step-000004/optimizer.safetensors", "step-000003/model.safetensors")
    for line, path in zip(caplog.messages, paths, strict=True):
        assert f"{path} is damaged" in line
        assert line.endswith("going back to the checkpoint before")
        assert "\n" not in line


def test_an_intact_last_checkpoint_logs_nothing(run: Run, save: Save, caplog: pytest.LogCaptureFixture) -> None:
    save(1)
    assert run.last_intact().step == 1
    assert caplog.messages == []


def test_a_run_without_an_intact_checkpoint_is_refused(run: Run, save: Save) -> None:
    damage(save(1))
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* is intact; start again with another --out"):
        run.last_intact()


# --- metrics ---------------------------------------------------------------------------------------------------------

LINES = [{"step": step, "loss": 3.5 - step, "validation_loss": None} for step in (1, 2, 3)]


@pytest.fixture
def measured(run: Run) -> Run:
    for line in LINES:
        run.append_metrics(line)
    return run


def test_metrics_come_back_in_the_order_they_were_written(measured: Run) -> None:
    assert measured.metrics() == LINES


def test_a_run_without_metrics_has_none(run: Run) -> None:
    assert run.metrics() == []


def cut(run: Run, count: int) -> None:
    path = run.directory / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-count])


@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_truncated_last_line_is_left_out(count: int, measured: Run) -> None:
    cut(measured, count)
    assert measured.metrics() == LINES[:2]


@pytest.mark.parametrize("was_cut", [False, True])
def test_resuming_drops_the_metrics_after_the_checkpoint(was_cut: bool, measured: Run) -> None:
    if was_cut:
        cut(measured, 5)
    measured.forget_metrics_after(2)
    assert measured.metrics() == LINES[:2]
    measured.append_metrics(LINES[2])
    assert measured.metrics() == LINES


def test_samples_are_kept_by_step(measured: Run) -> None:
    measured.samples.mkdir()
    measured.write_sample(12, "once upon ☃")
    assert (measured.samples / "step-000012.txt").read_text(encoding="utf-8") == "once upon ☃"

"""Run directories: names of checkpoints, and recovery from damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from foretell.errors import CheckpointError, OutputError
from foretell.runs.checkpoint import Checkpoint
from foretell.runs.record import RunRecord
from foretell.runs.run import Run, find_runs, is_run

Save = Callable[..., Checkpoint]


@pytest.fixture
def run(folder: Path) -> Run:
    return Run(folder.parent)


# --- making and opening ----------------------------------------------------------------------------------------------


def test_a_new_run_is_a_run_once_its_record_is_written(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "new" / "x")
    assert not is_run(run.directory)
    record = RunRecord(config={"model": {}}, data=["x"], size="toy", device="cpu", dtype="float32")
    run.write_record(record, {"torch": "2"})
    assert is_run(run.directory)
    assert Run.open(run.directory).record() == record.model_copy(update={"files_in_tokens": []})
    assert run.name == "x"
    assert json.loads((run.directory / "environment.json").read_text()) == {"torch": "2"}


def test_a_run_is_never_made_in_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(OutputError, match=r"exists; it is not a run, so give another out") as caught:
        Run.create(tmp_path)
    assert caught.value.for_command_line().endswith("so give another --out")
    with pytest.raises(OutputError, match="exists"):
        Run.create(tmp_path / "mine.txt")
    with pytest.raises(OutputError, match="could not write .*/x: Not a directory; give another out$"):
        Run.create(tmp_path / "mine.txt" / "x")
    assert (tmp_path / "mine.txt").read_text() == "x"


def test_an_empty_folder_may_become_a_run(tmp_path: Path) -> None:
    assert Run.create(tmp_path).checkpoints.is_dir()


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a run: run\.json is missing"):
        Run.open(tmp_path)
    assert not is_run(tmp_path / ("x" * 1000))


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
        assert line.endswith("other checkpoints are preferred")
        assert "\n" not in line


def test_a_damaged_checkpoint_is_logged_once(run: Run, save: Save, caplog: pytest.LogCaptureFixture) -> None:
    save(1, validation_loss=1.0)
    damage(save(2, validation_loss=0.5), "training.json")
    assert [run.best().step, run.best().step, run.last_intact().step] == [1, 1, 1]
    (line,) = caplog.messages
    assert "step-000002/training.json is damaged" in line


def test_an_intact_last_checkpoint_logs_nothing(run: Run, save: Save, caplog: pytest.LogCaptureFixture) -> None:
    save(1)
    assert run.last_intact().step == 1
    assert caplog.messages == []


def test_a_run_without_an_intact_checkpoint_is_refused(run: Run, save: Save) -> None:
    damage(save(1))
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* is intact; start again with another out"):
        run.last_intact()


def test_samples_are_kept_by_step(run: Run) -> None:
    run.samples.mkdir()
    run.write_sample(12, "once upon ☃")
    assert (run.samples / "step-000012.txt").read_text(encoding="utf-8") == "once upon ☃"


def test_a_run_that_was_being_deleted_is_not_listed(run: Run, tmp_path: Path) -> None:
    run.write_record(RunRecord(config={}, data=[], size="toy", device="cpu", dtype="float32"), {})
    leaving = run.directory.with_name(".tmp-foretell-run-77")
    shutil.copytree(run.directory, leaving)
    assert [each.directory for each in find_runs(run.directory.parent)] == [run.directory]

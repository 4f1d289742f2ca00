"""Training that is killed, or whose disk fails, at any file operation: what is saved is complete and resumes equal."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from foretell.generation.batch_generation import continue_prompt
from foretell.pretraining.pretrain import TextTraining
from foretell.runs.checkpoint import list_checkpoints
from foretell.session.protocol import resume_session
from foretell.session.reporter import Reporter
from foretell.session.session import Session
from foretell.training.loop import train

KILLED = -signal.SIGKILL
FAILURES = ["killed", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("full disk", "broken disk"))]


@pytest.fixture(scope="module")
def halfway(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run after its first checkpoint, two steps of four."""
    out = tmp_path_factory.mktemp("half") / "run"
    shutil.copytree(uninterrupted, out)
    shutil.rmtree(out / "checkpoints" / "step-000004")
    return out


@pytest.fixture(scope="module")
def about_to_save(tiny: Any, halfway: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """In memory after step four, on the disk after step two."""
    out = fresh(halfway, tmp_path_factory.mktemp("saving") / "run")
    session = resume_session(TextTraining(tiny.request(out), continue_prompt), Reporter())
    train(
        session.task.objective,
        session.optimizer,
        session.task,
        session.training,
        session.progress,
        session.actions()[::4],  # evaluations are counted, and metrics logged
        dtype=session.dtype,
    )
    return session


def fresh(template: Path, out: Path) -> Path:
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(template, out)
    return out


def content(checkpoint: Path) -> dict[str, Any]:
    """Every file of a checkpoint, without the seconds that it took, and so without the hash of that file."""
    files: dict[str, Any] = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    training, manifest = json.loads(files["training.json"]), json.loads(files["manifest.json"])
    del training["progress"]["seconds"], manifest["files"]["training.json"]
    return {**files, "training.json": training, "manifest.json": manifest}


def assert_saved(out: Path, uninterrupted: Path) -> list[int]:
    """Every checkpoint equals that of the uninterrupted run; returns their steps."""
    checkpoints = list_checkpoints(out / "checkpoints")
    for checkpoint in checkpoints:
        checkpoint.verify()
        same = uninterrupted / "checkpoints" / f"step-{checkpoint.step:06d}"
        assert content(checkpoint.directory) == content(same)
    return [checkpoint.step for checkpoint in checkpoints]


def assert_resumes_equal(tiny: Any, out: Path, uninterrupted: Path) -> None:
    """Resumed, it ends as the uninterrupted run, and nothing temporary is left."""
    assert tiny.in_a_process(lambda: tiny.train(out)) == 0
    assert tiny.final_state(out) == tiny.final_state(uninterrupted)
    assert not [path for path in out.rglob("*") if path.name.startswith(".tmp-")]


# --- every file operation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAILURES)
def test_any_io_failure_of_a_save_leaves_the_old_or_the_new_checkpoint(
    kind: str, tiny: Any, about_to_save: Session, halfway: Path, uninterrupted: Path
) -> None:
    out = about_to_save.run.directory

    def save() -> None:
        about_to_save.save(about_to_save.progress)

    fresh(halfway, out)
    count = tiny.operations(save)
    assert 25 < count < 100
    failed = 0
    for operation in range(count):
        fresh(halfway, out)
        code = tiny.fails(save, operation, kind)
        assert code in ((KILLED,) if kind == "killed" else (0, tiny.REFUSED)), operation
        failed += code != 0
        assert assert_saved(out, uninterrupted) in (([2], [2, 4]) if code else ([2, 4],)), operation
        if operation % 32 == 5:
            assert_resumes_equal(tiny, out, uninterrupted)
    assert failed > 20  # failing to remove a temporary file does not stop training


@pytest.mark.parametrize("kind", FAILURES)
def test_replacing_a_checkpoint_survives_any_io_failure(
    kind: str, tiny: Any, about_to_save: Session, uninterrupted: Path
) -> None:
    out = about_to_save.run.directory

    def save() -> None:
        about_to_save.save(about_to_save.progress)

    fresh(uninterrupted, out)
    for operation in range(tiny.operations(save)):
        fresh(uninterrupted, out)
        tiny.fails(save, operation, kind)
        assert assert_saved(out, uninterrupted) == [2, 4], operation


def test_killed_at_any_file_operation_of_its_preparation_training_starts_again(
    tiny: Any, uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    operation, step = 0, 5
    while True:
        shutil.rmtree(out, ignore_errors=True)
        code = tiny.fails(lambda: tiny.train(out), operation, "killed")
        assert code == KILLED
        if (out / "metrics.jsonl").exists():  # it was prepared
            break
        if operation % 20 == 0:
            assert_resumes_equal(tiny, out, uninterrupted)
        operation += step
    assert operation > 20


# --- random moments --------------------------------------------------------------------------------------------------


def test_a_leftover_mark_of_preparation_is_removed_on_resuming(
    tiny: Any, halfway: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    out = fresh(halfway, tmp_path / "run")
    (out / "preparing.json").write_text('{"data": ["cats.txt"]}')
    assert_resumes_equal(tiny, out, uninterrupted)


def test_a_run_killed_at_random_moments_ends_the_same(tiny: Any, uninterrupted: Path, tmp_path: Path) -> None:
    choose = random.Random(3)
    out = tmp_path / "run"
    for _ in range(5):
        tiny.killed_after(choose.uniform(0.0, 0.15), lambda: tiny.train(out))
        assert_saved(out, uninterrupted)
    assert_resumes_equal(tiny, out, uninterrupted)

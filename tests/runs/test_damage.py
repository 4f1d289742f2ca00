"""Damage to the small files of a run: what decides something is checked, what does not never blocks."""

from __future__ import annotations

import copy
import errno
import json
import logging
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretell.data.documents import TextDocument
from foretell.errors import CheckpointError, ForetellError, OutputError
from foretell.generation.batch_generation import continue_prompt
from foretell.loading import load
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.request import TextRequest
from foretell.runs.checkpoint import warn_once
from foretell.runs.record import sealed
from foretell.runs.run import Run
from foretell.runs.summary import summarize
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter

FROZEN = Path(__file__).parents[1] / "frozen" / "tasks" / "runs" / "text"
JUNK = (None, True, "x", -1, 1.5, [], [1], {}, {"a": 1}, 10**30)


@pytest.fixture(scope="session")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 steps that has only the checkpoint of step 4."""
    out = tmp_path_factory.mktemp("unfinished") / "run"
    sections = {
        "model": {"num_layers": 1, "width": 16, "context_length": 16},
        "tokenizer": {"kind": "bytes"},
        "training": {"steps": 8, "checkpoint_every": 4, "keep_checkpoints": 2},
    }
    request = TextRequest(
        source=lambda: [TextDocument("x", "a b c d e " * 100)],
        names=["x"],
        out=out,
        size="toy",
        device="cpu",
        overrides=sections,
    )
    run_training(TextTraining(request, continue_prompt), Reporter())
    shutil.rmtree(out / "checkpoints" / "step-000008")
    Run(out).metrics.keep(lambda line: line["step"] <= 4)
    return out


@pytest.fixture
def run(unfinished: Path, tmp_path: Path) -> Run:
    """A copy of it to damage."""
    shutil.copytree(unfinished, tmp_path / "run")
    return Run(tmp_path / "run")


def resume(run: Run) -> None:
    run_training(
        TextTraining(TextRequest(source=list, names=[], out=run.directory, device="cpu"), continue_prompt),
        Reporter(),
        resume=True,
    )


def damaged(content: bytes, rng: random.Random) -> bytes:
    """One byte changed to another printable one."""
    index = rng.randrange(len(content))
    other = rng.choice([byte for byte in range(32, 127) if byte != content[index]])
    return content[:index] + bytes([other]) + content[index + 1 :]


def test_a_changed_byte_in_training_json_is_noticed_where_the_best_checkpoint_is_chosen(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    path = run.checkpoints / "step-000004" / "training.json"
    content, rng = path.read_bytes(), random.Random(1)
    for _ in range(40):
        path.write_bytes(damaged(content, rng))
        caplog.clear()
        warn_once.cache_clear()
        run.best()
        assert "training.json is damaged" in caplog.text
        with pytest.raises(CheckpointError, match=r"training\.json is damaged"):
            run.best().training()


@pytest.mark.parametrize("argument", ["run", "run@last", "run/checkpoints/step-000004"])
def test_a_checkpoint_without_its_manifest_is_refused(run: Run, argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.directory.parent)
    (run.checkpoints / "step-000004" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        load(argument, "cpu")


def test_a_changed_byte_in_run_json_is_always_noticed(run: Run) -> None:
    path = run.directory / "run.json"
    content, rng, record = path.read_bytes(), random.Random(2), run.record()
    passed = 0
    for _ in range(200):
        path.write_bytes(damaged(content, rng))
        try:
            assert run.record() == record  # only white space
            passed += 1
        except CheckpointError as error:
            assert "run.json" in str(error)
    assert passed < 20


@pytest.mark.parametrize("key", ["format", "sha256"])
def test_a_record_that_lost_part_of_its_checksum_is_refused(run: Run, key: str) -> None:
    path = run.directory / "run.json"
    path.write_text(path.read_text().replace(f'"{key}"', '"other"'))
    with pytest.raises(CheckpointError, match="does not match its own SHA-256"):
        run.record()


@pytest.mark.parametrize("content", ["{", "[]", "\x00", '{"threads": "many"}'])
def test_a_damaged_environment_file_does_not_block_resuming(
    run: Run, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (run.directory / "environment.json").write_text(content)
    with caplog.at_level(logging.WARNING):
        resume(run)
    assert run.at("last").step == 8
    assert "environment.json" in caplog.text or content.startswith('{"')


def test_metrics_that_were_changed_are_a_warning_when_the_run_is_listed_and_resumed(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    resume(run)
    path = run.directory / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["loss"] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    caplog.clear()
    summarize(run)
    assert "metrics.jsonl was changed or damaged" in caplog.text
    caplog.clear()
    resume(run)
    assert "metrics.jsonl was changed or damaged" in caplog.text


@pytest.mark.parametrize("line", ['{"step": 1, "loss": "x"}', '{"step": "1"}', "[]", "7", '{"step": 1, "tokens": {}}'])
def test_a_line_of_metrics_of_another_type_is_an_error_of_one_line(run: Run, line: str) -> None:
    path = run.directory / "metrics.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged"):
        summarize(run)


@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
def test_metrics_that_are_a_device_or_a_pipe_are_refused_unread(run: Run, target: str) -> None:
    path = run.directory / "metrics.jsonl"
    path.unlink()
    if target == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(target)
    with pytest.raises(CheckpointError, match="is a link out of its directory|is not a regular file"):
        run.metrics.records()


def test_a_run_whose_record_is_lost_is_never_advised_to_be_removed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.directory.parent)
    (run.directory / "run.json").unlink()
    for action, kind in ((lambda: Run.create(Path("run")), OutputError), (lambda: load("run"), CheckpointError)):
        with pytest.raises(kind, match=r"--start-from run/checkpoints/step-000004") as raised:
            action()
        assert "remove" not in str(raised.value)
    assert load("run/checkpoints/step-000004", "cpu").decoder is not None


def test_a_marker_that_cannot_be_removed_does_not_block_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """EBUSY, as some network file systems answer."""

    def busy(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "unlink", busy)
    new = Run.create(tmp_path / "new")
    new.write_record(Run(FROZEN).record(), {})
    new.clear_leftovers()
    assert new.record().size == Run(FROZEN).record().size
    assert "preparing.json: Device or resource busy; it does no harm" in caplog.text


# --- a short fuzzer -------------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def mutants(value: Any, count: int, rng: random.Random) -> Iterator[Any]:
    """Copies of a JSON value in which one value is another, or missing."""
    paths = list(places(value))
    for _ in range(count):
        changed, path = copy.deepcopy(value), rng.choice(paths)
        owner = changed
        for key in path[:-1]:
            owner = owner[key]
        if rng.random() < 0.2:
            del owner[path[-1]]
        else:
            owner[path[-1]] = rng.choice(JUNK)
        yield changed


@pytest.mark.parametrize(
    "name", ["run.json", "environment.json", "checkpoints/step-000004/training.json", "tokens/index.json"]
)
def test_values_of_any_type_in_a_json_file_of_a_run_end_in_one_line(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.session.session.Session.go", lambda session: None)
    path = run.directory / name
    content = json.loads(path.read_text())
    metrics = (run.directory / "metrics.jsonl").read_bytes()
    for mutant in mutants(content, 60, random.Random(name)):
        if name == "run.json":  # its checksum would find every change
            mutant = sealed({key: mutant[key] for key in mutant if key not in ("format", "sha256")})
        path.write_text(json.dumps(mutant))
        for read in (resume, summarize, Run.best):
            try:
                read(run)
            except ForetellError as error:
                assert "\n" not in str(error)
            (run.directory / "metrics.jsonl").write_bytes(metrics)

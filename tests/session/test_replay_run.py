"""Any step of a run is taken again to the same bits, for every task and optimizer, and the run stays as it is."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import foretell
import foretell.session.replay_run as replay_run
from foretell.errors import CheckpointError, UsageError
from foretell.finding import find_model
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.run import ENVIRONMENT, Run
from foretell.session.options import LongReplays
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter
from foretell.session.run_update import explain_update
from foretell.trainings import replay_update, training_of
from foretell.translation.pairs import Pair
from foretell.translation.task import PairData
from foretell.translation.train import PairRequest, TranslationTraining

STEPS = 6
SMALL: Any = {"num_layers": 1, "width": 16, "num_heads": 2, "context_length": 48}
DROPOUT: Any = {"embedding": 0.1, "attention": 0.0, "residual": 0.1}
ANSWERS = [{"text": f"the {word} day number {index}", "label": word} for index in range(12) for word in ("good", "bad")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "foretell" / "replayed"


def settings(**changes: Any) -> dict[str, Any]:
    every = {"checkpoint_every": 1, "evaluate_every": 1, "keep_checkpoints": 99, "warmup_steps": 2}
    return {"steps": STEPS, "batch_size": 2, **every, **changes}


def text(folder: Path, **training: Any) -> Run:
    data = folder / "text.txt"
    data.write_text("the cat sat on the mat, and the dog ran home. " * 100)
    given: Any = {"model": {**SMALL, "dropout": DROPOUT}, "minutes": training.pop("minutes", None)}
    given["training"] = {name: value for name, value in settings(**training).items() if value is not None}
    foretell.train(data, folder / "run", device="cpu", progress=False, **given)
    return Run(folder / "run")


def start(folder: Path) -> Path:
    """A small model to tune."""
    text(folder / "start", steps=1)
    return folder / "start" / "run"


def domain(folder: Path, **training: Any) -> Run:
    (folder / "start").mkdir()
    data, model = folder / "domain.txt", start(folder)
    data.write_text("a bird sang in the tree and the sun was low. " * 100)
    given: Any = {"training": settings(**training), "device": "cpu", "progress": False}
    foretell.finetune(model, data, folder / "run", task="text", **given)
    return Run(folder / "run")


def labels(folder: Path, **training: Any) -> Run:
    (folder / "start").mkdir()
    given: Any = {"training": settings(**training), "device": "cpu", "progress": False}
    foretell.finetune(start(folder), ANSWERS, folder / "run", task="classify", **given)
    return Run(folder / "run")


def chat(folder: Path, **training: Any) -> Run:
    (folder / "start").mkdir()
    data = folder / "chat.jsonl"
    rows = [{"prompt": f"on {index}", "completion": f"cat {index}"} for index in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given: Any = {"training": settings(**training), "device": "cpu", "progress": False}
    foretell.finetune(start(folder), data, folder / "run", task="chat", **given)
    return Run(folder / "run")


def series(folder: Path, **training: Any) -> Run:
    data = folder / "series.csv"
    lines = (f"2024-01-{day:02},{day % 7 + day / 31}\n" for day in range(1, 32))
    data.write_text("date,value\n" + "".join(lines))
    given: Any = {"model": {**SMALL, "dropout": DROPOUT}, "horizon": 2, "is_from_scratch": True}
    given |= {"training": settings(**training), "device": "cpu", "progress": False, "size": "toy"}
    given["model"].pop("context_length")
    foretell.train(data, folder / "run", task="forecast", **given)
    return Run(folder / "run")


def translation(folder: Path, **training: Any) -> Run:
    words = {"cat": "chat", "dog": "chien", "red": "rouge", "big": "grand"}
    pairs = [Pair(f"{a} {b}", f"{words[a]} {words[b]}") for a in words for b in words]
    overrides = {"training": settings(**training), "pairs": {"batch_tokens": 24}}
    del overrides["training"]["batch_size"]
    request = PairRequest(
        out=folder / "run", pairs=PairData(pairs[:12], pairs[12:]), size="toy", device="cpu", overrides=overrides
    )
    run_training(TranslationTraining(request), Reporter())
    return Run(folder / "run")


TASKS: dict[str, Callable[..., Run]] = {
    "text": text,
    "domain": domain,
    "labels": labels,
    "chat": chat,
    "series": series,
    "translation": translation,
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def states(run: Run) -> dict[int, dict[str, bytes]]:
    """The bytes of weights and moments by step."""
    names = ("model.safetensors", "optimizer.safetensors")
    every = list_checkpoints(run.checkpoints)
    return {each.step: {name: (each.directory / name).read_bytes() for name in names} for each in every}


def keep_only(run: Run, *steps: int) -> None:
    for checkpoint in list_checkpoints(run.checkpoints):
        if checkpoint.step not in steps:
            shutil.rmtree(checkpoint.directory)


def differs(run: Run, step: int, before: dict[str, bytes]) -> list[str]:
    """The files of the replayed state that are not the run's."""
    directory = find_model(f"{run.directory}@step-{step}")
    assert run.directory not in directory.parents
    return [name for name, data in before.items() if (directory / name).read_bytes() != data]


@pytest.mark.parametrize("task", TASKS)
def test_a_replayed_step_has_the_weights_and_moments_of_the_run(task, tmp_path):
    run = TASKS[task](tmp_path)
    before = states(run)
    keep_only(run, 2, STEPS)
    files = contents(run.directory)
    assert [step for step in (5, 3, 1) if differs(run, step, before[step])] == []
    assert contents(run.directory) == files


@pytest.mark.parametrize("task", TASKS)
def test_an_update_has_the_loss_of_the_run_and_that_of_each_token(task, tmp_path):
    run = TASKS[task](tmp_path, log_every=1, clip_norm=0.1)
    logged = {line["step"]: line for line in run.metrics.records()}
    keep_only(run, 2, STEPS)
    before = replay_update(run, 4)
    view = explain_update(before)
    assert (view.loss, view.gradient_norm) == (logged[4]["loss"], logged[4]["gradient_norm"])
    assert (view.rate, len(view.rows)) == (logged[4]["learning_rate"], len(before.batch))
    rows = [[(token.id, token.loss) for token in row.tokens if token.loss is not None] for row in view.rows]
    if task == "labels":  # the task's loss, and half of the mean loss per token
        losses = [row[-1][1] + 0.5 * sum(loss for _, loss in row[:-1]) / (len(row) - 1) for row in rows]
    else:
        losses = [loss for row in rows for _, loss in row]
    assert len(losses) == view.targets
    assert sum(losses) / len(losses) == pytest.approx(view.loss, rel=2e-3)  # rows one by one in bfloat16
    if task == "labels":
        assert [row.loss for row in view.rows] == pytest.approx(losses, rel=1e-3)
        assert {token.document for row in view.rows for token in row.tokens} == {0}  # the target follows its text


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_replay_uses_the_optimizer_and_the_recorded_shares_of_time(optimizer, tmp_path):
    """A schedule by time, whose rates depend on the clock of the run."""
    run = text(tmp_path, optimizer=optimizer, steps=None, minutes=0.02, gradient_accumulation_steps=2)
    before = states(run)
    last = max(before)
    keep_only(run, last)
    assert not differs(run, last - 1, before[last - 1])
    shares = run.pace.path.read_text()
    run.pace.path.write_text("".join(shares.splitlines(keepends=True)[:3]))
    shutil.rmtree(find_model(f"{run.directory}@step-{last - 1}").parent)
    with pytest.raises(CheckpointError, match="has no step 3"):
        find_model(f"{run.directory}@step-{last - 1}")


def test_settings_that_changed_on_resuming_are_recorded_and_replayed(tmp_path):
    """Accumulation changes the last digits, so a step after the change has other bits with the first setting."""
    run = text(tmp_path, batch_size=8, label_smoothing=0.1)
    keep_only(run, 1, 2, 3)
    for parts, kept in ((4, 4), (2, STEPS)):
        training = training_of(run)
        training.request = replace(training.request, overrides={"training": {"gradient_accumulation_steps": parts}})
        run_training(training, Reporter(), resume=True)
        keep_only(run, *range(1, kept + 1))
    changes = run.record().changes
    recorded = [(each.step, each.training["gradient_accumulation_steps"]) for each in changes or ()]
    assert recorded == [(0, 1), (3, 4), (4, 2)]
    before = states(run)
    keep_only(run, STEPS)
    assert [step for step in (5, 4, 2) if differs(run, step, before[step])] == []
    assert replay_update(run, 4).session.training.gradient_accumulation_steps == 4


def test_a_run_that_resumes_as_it_was_started_records_nothing(tmp_path):
    run = text(tmp_path)
    keep_only(run, 1, 2)
    run_training(training_of(run), Reporter(), resume=True)
    assert "changes" not in run.record().to_json()


def test_what_a_replay_cannot_do_is_one_line(tmp_path, caplog, monkeypatch):
    run = text(tmp_path)
    keep_only(run, 3, STEPS)
    for step in (7, 99999999):
        with pytest.raises(CheckpointError, match=f"has the steps 0 to {STEPS}, not {step:,}"):
            find_model(f"{run.directory}@step-{step}")
    with pytest.raises(CheckpointError, match="has the updates 1 to 6, not 0"):
        replay_update(run, 0)
    weights = run.checkpoints / "step-000003" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    environment = json.loads((run.directory / ENVIRONMENT).read_text())
    (run.directory / ENVIRONMENT).write_text(json.dumps({**environment, "torch": "1.13.1"}))
    caplog.clear()
    find_model(f"{run.directory}@step-4")
    assert any("model.safetensors" in line and "other checkpoints are preferred" in line for line in caplog.messages)
    assert any("not 1.13.1" in line and "may differ in the last digits" in line for line in caplog.messages)
    monkeypatch.setattr(LongReplays, "are_allowed", False)
    monkeypatch.setattr(replay_run, "LONG", 0.0)
    with pytest.raises(UsageError, match=r"taking 2 steps of .* again lasts about .*; give yes"):
        find_model(f"{run.directory}@step-2")
    monkeypatch.setattr(LongReplays, "are_allowed", True)
    shutil.rmtree(run.tokens)
    with pytest.raises(CheckpointError, match="no step of .* can be replayed, but it has step-000003, step-000006"):
        find_model(f"{run.directory}@step-2")


def test_a_start_that_is_gone_is_needed_only_before_the_first_checkpoint(tmp_path):
    run = domain(tmp_path)
    keep_only(run, 3, STEPS)
    shutil.rmtree(tmp_path / "start")
    find_model(f"{run.directory}@step-4")
    with pytest.raises(CheckpointError, match="no model '.*start.*can be replayed, but it has step-000003"):
        find_model(f"{run.directory}@step-2")


def test_the_cache_keeps_the_states_that_were_used_last(tmp_path, cache, monkeypatch):
    run = text(tmp_path)
    keep_only(run, STEPS)
    first = find_model(f"{run.directory}@step-1")
    monkeypatch.setattr(replay_run, "CACHE_LIMIT", 2.8 * sum(each.stat().st_size for each in first.iterdir()))
    os.utime(find_model(f"{run.directory}@step-4"), (2, 2))
    os.utime(first, (1, 1))
    find_model(f"{run.directory}@step-1")
    find_model(f"{run.directory}@step-3")
    assert sorted(each.name for each in cache.glob("*/step-*")) == ["step-000001", "step-000003"]


def iter_random_steps(folder: Path, rng: random.Random, count: int) -> Iterator[tuple[str, str, int, list[str]]]:
    """Task, optimizer, step and the files that differ, of steps of random runs, half of them resumed."""
    choices = [(task, optimizer) for task in TASKS for optimizer in ("adamw", "sgd", "muon")]
    for number in range(0, count, 4):
        task, optimizer = choices[number // 4 % len(choices)]
        place, steps = folder / str(number), rng.randint(8, 24)
        place.mkdir()
        run = TASKS[task](place, optimizer=optimizer, steps=steps, learning_rate=rng.choice([1e-3, 1e-2]))
        if rng.random() < 0.5:
            keep_only(run, *range(1, steps // 2 + 1))
            training = training_of(run)
            parts = {} if task == "translation" else {"gradient_accumulation_steps": rng.choice([1, 2])}
            training.request = replace(training.request, overrides={"training": parts})
            run_training(training, Reporter(), resume=True)
        before = states(run)
        kept = (*rng.sample(range(1, steps), 3), steps)
        keep_only(run, *kept)
        for step in rng.sample([each for each in range(1, steps) if each not in kept], 4):
            yield task, optimizer, step, differs(run, step, before[step])
        shutil.rmtree(place)


@pytest.mark.long
def test_500_random_steps_have_the_bits_of_their_runs(tmp_path):
    compared = [*iter_random_steps(tmp_path, random.Random(0), 500)]
    assert len(compared) == 500
    assert [each for each in compared if each[-1]] == []

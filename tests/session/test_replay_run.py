"""Any step of a run is taken again to the same bits, for every task and optimizer, and the run stays as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.finding import find_model
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.run import Run
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter
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
    model = {**SMALL, "dropout": DROPOUT}
    foretell.train(data, folder / "run", model=model, training=settings(**training), device="cpu", progress=False)
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

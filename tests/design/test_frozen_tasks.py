"""Runs of every task, written before formats and features were removed, keep opening and resuming.

Each run in tests/frozen/tasks was stopped after one step of five (`folds` after two). `expected.json` has what its
checkpoint answered, and the loss of the last step of the training that was not stopped. The files are never written
again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from foretell.cli.main import run
from foretell.runs.run import Run

FROZEN = Path(__file__).parents[1] / "frozen" / "tasks"
EXPECTED = json.loads((FROZEN / "expected.json").read_text(encoding="utf-8"))
# Its TF-IDF model is not read any more, and its decoder has the weights of the run without one
EXPECTED["answers"]["ensemble"] = EXPECTED["answers"]["classify"]
QUESTIONS = {  # run: the verb, and what it reads after the model
    "text": ["next", "the cat"],
    "floor": ["score", "the cat sat"],
    "rows": ["next", "the cat sat is <EOS>", "--allow-special"],
    "translation": ["translate", "the cat sat"],
    "forecast": ["forecast", "series.csv", "--horizon", "3"],
    "classify": ["predict", "the cat sat"],
    "ensemble": ["predict", "the cat sat"],
    "folds": ["predict", "the cat sat"],
    "regress": ["predict", "the cat sat"],
    "similarity": ["predict", "the cat sat", "a cat sat"],
    "entailment": ["predict", "the cat sat", "a cat sat"],
    "choice": ["predict", "the cat sat", "the mat", "the man"],
    "tag": ["predict", "the cat sat"],
    "chat": ["next", "the cat sat"],
    "lora": ["predict", "the cat sat"],
    "domain": ["next", "the cat"],
}
VERBS = {
    "text": ["train"],
    "floor": ["train"],
    "rows": ["train"],
    "translation": ["train", "--task", "translate"],
    "forecast": ["train", "--task", "forecast"],
}


@pytest.fixture
def frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the frozen files, in the current folder."""
    shutil.copytree(FROZEN, tmp_path / "frozen")
    monkeypatch.chdir(tmp_path / "frozen")
    return tmp_path / "frozen"


def assert_close(value: Any, expected: Any) -> None:
    """Compare parsed JSON; numbers may differ by the rounding of another processor."""
    if isinstance(expected, dict):
        assert isinstance(value, dict) and value.keys() >= expected.keys()
        for key in expected:
            assert_close(value[key], expected[key])
    elif isinstance(expected, list):
        assert isinstance(value, list) and len(value) == len(expected)
        for one, other in zip(value, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, rel=1e-3)
    else:
        assert value == expected


def test_every_run_has_a_question() -> None:
    assert {path.name for path in (FROZEN / "runs").iterdir()} == set(QUESTIONS) == set(EXPECTED["losses"])


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_frozen_run_answers_as_it_did(frozen: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    verb, *rest = QUESTIONS[name]
    assert run([verb, f"runs/{name}", *rest, "--json"]) == 0
    shown = capfd.readouterr()
    assert_close(json.loads(shown.out), EXPECTED["answers"][name])
    assert shown.err.count("are of a mixture with TF-IDF, and now the decoder answers alone") == (name == "ensemble")


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_frozen_run_resumes_to_its_last_step(frozen: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    verb = VERBS.get(name, ["finetune"])
    assert run([*verb, "--out", f"runs/{name}", "--resume", "auto"]) == 0, capfd.readouterr().err
    last = (frozen / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    assert json.loads(last)["step"] == 5
    assert json.loads(last)["loss"] == pytest.approx(EXPECTED["losses"][name], rel=1e-3)


def test_a_run_with_folds_resumes_on_all_its_examples(frozen: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It was in its last training, on all examples, for which no held-out examples give figures to report."""
    assert run(["finetune", "--out", "runs/folds", "--resume", "auto"]) == 0
    assert "the training on all examples continues" in capfd.readouterr().err
    assert not (frozen / "runs" / "folds" / "report.json").exists()
    assert run(["runs", "runs/folds", "runs/classify"]) == 0
    assert "finetuning.folds" not in capfd.readouterr().out
    Run("runs/folds").remove()
    assert not (frozen / "runs" / "folds" / "folds").exists()

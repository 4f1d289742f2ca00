"""Every kind of fine-tuning trains, resumes, predicts and evaluates; so does one that the package does not contain."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from foretell.cli.main import run
from foretell.data.table import open_table
from foretell.errors import ConfigError, UsageError
from foretell.finetuning.examples import Example, ExampleReader
from foretell.finetuning.head import head_of
from foretell.finetuning.inputs import Target, TaskBatch
from foretell.finetuning.kind import Kind
from foretell.finetuning.kinds import KINDS
from foretell.finetuning.predict import predict, predict_file, write_predictions
from foretell.finetuning.prediction_format import PredictionFormat, TaskPrediction
from foretell.finetuning.report import REPORT, FinetuneReport, evaluate_task
from foretell.finetuning.request import FinetuneRequest
from foretell.finetuning.settings import Columns
from foretell.loading import load
from foretell.storage.files import read_json, write_json

# --- a kind in one place ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlagPrediction(TaskPrediction):
    probability: float = 0.0

    def short(self) -> str:
        return f"{self.probability:.0%} yes"

    def to_json(self) -> dict[str, Any]:
        return {"yes": self.probability}


class FlagFormat(PredictionFormat):
    answer = "yes"

    def make(self, outputs: np.ndarray, texts: Sequence[str]) -> FlagPrediction:
        return FlagPrediction(probability=float(1 / (1 + np.exp(-outputs[0]))))


class FlagKind(Kind):
    """Yes or no, as one logit."""

    reader = ExampleReader("flag", ("flag",))
    format = FlagFormat
    scores = ("agreement",)

    def target(self, example: Example) -> Target:
        return (float(example.labels == ("good",)),)

    def describe_targets(self, targets: Sequence[Target]) -> str:
        return f"{sum(value for (value,) in targets):.0f} yes"

    def losses(self, outputs: torch.Tensor, batch: TaskBatch, label_smoothing: float) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(outputs, batch.targets, reduction="none")[:, 0]

    def figures(self, outputs: Sequence[np.ndarray], targets: Sequence[Target]) -> dict[str, float]:
        right = [(output[0] > 0) == target for output, (target,) in zip(outputs, targets, strict=True)]
        return {"disagreement": 1 - float(np.mean(right)), "agreement": float(np.mean(right))}

    def baseline(self, train: Sequence[Target], targets: Sequence[Target]) -> dict[str, Any]:
        return {"rule": "always yes", "agreement": float(np.mean(targets))}


@pytest.fixture(autouse=True)
def flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "flag", f"{__name__}:FlagKind")


# --- every kind ------------------------------------------------------------------------------------------------------

Rows = list[tuple[Any, ...]]


def write_table(path: Path, header: list[str], rows: Rows) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def pairs(reviews: Rows) -> list[tuple[Any, Any]]:
    return [(reviews[index], reviews[(7 * index + 3) % 60]) for index in range(60)]


# kind: header, rows made of reviews with labels, texts of an example
FILES: dict[str, tuple[list[str], Any, list[str]]] = {
    "classify": (["text", "label"], lambda reviews: reviews, ["the film was great"]),
    "flag": (["text", "flag"], lambda reviews: reviews, ["the film was great"]),
    "regress": (
        ["text", "stars"],
        lambda reviews: [(text, 1.5 + 2 * (label == "good") + len(text) / 9) for text, label in reviews],
        ["the film was great"],
    ),
    "entailment": (
        ["premise", "hypothesis", "label"],
        lambda reviews: [(one[0], two[0], one[1] == two[1]) for one, two in pairs(reviews)],
        ["the film was great", "the book was dull"],
    ),
    "similarity": (
        ["text1", "text2", "score"],
        lambda reviews: [(one[0], two[0], 0.5 + (one[1] == two[1])) for one, two in pairs(reviews)],
        ["the film was great", "the book was dull"],
    ),
    "choice": (
        ["question", "answer1", "answer2", "label"],
        lambda reviews: [("the film", one[0], two[0], int(one[1] == "bad")) for one, two in pairs(reviews)],
        ["the film", "was great", "was dull"],
    ),
    "tag": (
        ["tokens", "tags"],
        lambda reviews: [(text, f"O B-THING O {label} O O") for text, label in reviews],
        ["the film was great"],
    ),
}


def test_every_kind_has_a_file_here() -> None:
    assert set(FILES) == set(KINDS)


@pytest.mark.parametrize("task", FILES)
def test_a_kind_trains_resumes_predicts_and_evaluates(
    task: str, start, reviews, tmp_path: Path, tiny_request, finetune
) -> None:
    header, rows, texts = FILES[task]
    data = write_table(tmp_path / "rows.csv", header, rows(reviews))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    request = tiny_request(data, whole, task, overrides={"training": {"keep_checkpoints": 2}}, start=start)
    assert finetune(request).progress.step == 12
    shutil.copytree(whole, cut)
    last = cut / "checkpoints" / "step-000012"
    shutil.rmtree(last)
    with pytest.raises(ConfigError, match="data = "):
        finetune(FinetuneRequest(out=cut, data=tmp_path / "other.csv"), resume=True)
    assert finetune(FinetuneRequest(out=cut), resume=True).progress.step == 12
    first, second = (load_file(out / "model.safetensors") for out in (last, whole / "checkpoints" / "step-000012"))
    assert all(torch.equal(first[key], second[key]) for key in first | second)
    report, again = ({**read_json(out / REPORT), "minutes": 0.0} for out in (whole, cut))
    assert report == again and report["task"] == task
    rule = read_json(whole / REPORT)["baseline"]["rule"]
    assert f"baseline: {rule}" in " ".join(str(FinetuneReport(report)).split())

    model = load(whole)
    (prediction,) = predict(model, [texts])
    assert prediction.short() and str(prediction)
    assert head_of(model).task.predictions.answer in prediction.to_json()
    table, out = open_table(data), tmp_path / "out.csv"
    kind = head_of(model).task
    predicted = list(predict_file(model, table, Columns(texts=())))
    assert write_predictions(out, predicted, kind, lambda count: None, table) == 60
    assert kind.predictions.column in out.read_text(encoding="utf-8").splitlines()[0]
    assert evaluate_task(model, data).examples == 60


def test_the_command_line_takes_a_new_kind(base: Path, review_file: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flags.csv").write_text(review_file.read_text(encoding="utf-8").replace("label", "flag", 1))
    short = ["--training.steps", "3", "--training.batch-size", "6", "--best-by", "agreement"]
    assert run(["finetune", str(base), "flags.csv", "--task", "flag", *short, "--out", "run"]) == 0
    captured = capsys.readouterr()
    assert "always yes" in captured.out and "agreement" in captured.out
    assert run(["predict", "run", "the film was great"]) == 0
    assert capsys.readouterr().out.endswith("% yes\n")
    assert run(["explain", "run", "the film", "--prediction"]) == 2
    assert "cannot divide what a model for --task flag predicts" in capsys.readouterr().err
    assert run(["convert", "run", "hf", "--to", "huggingface"]) == 2
    assert "--task flag has no class in transformers; classify and entailment" in capsys.readouterr().err
    assert run(["finetune", str(base), "flags.csv", "--task", "flg", "--out", "x"]) == 2
    assert "unknown task 'flg', did you mean 'flag'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": "balanced"}, "class_weights balanced needs labels, which task flag lacks"),
        ({"best_by": "macro_f1"}, "task flag has no best_by macro_f1; give loss or agreement"),
    ],
)
def test_settings_without_a_meaning_are_refused_before_a_run_is_left(
    options: dict[str, str], message: str, start, reviews, tmp_path: Path, tiny_request, finetune
) -> None:
    data = write_table(tmp_path / "rows.csv", ["text", "flag"], reviews)
    with pytest.raises(UsageError, match=message):
        finetune(tiny_request(data, tmp_path / "run", "flag", overrides={"finetuning": options}, start=start))
    assert not (tmp_path / "run").exists()


# --- models that were saved before a kind was a class -----------------------------------------------------------------

# The entry of a classifier in config.json, as it was written then
HEAD = {
    "kind": "task_head",
    "task": "classify",
    "labels": ["bad", "good"],
    "mean": 0.0,
    "deviation": 1.0,
    "pool": "extract",
    "truncate": None,
    "tokens": {"start": "<|start|>", "delimiter": None, "extract": "<|extract|>"},
    "columns": {"texts": ["text"], "label": "label", "choices": []},
}


def test_the_entry_of_a_head_is_what_it_was(tuned: Path, tmp_path: Path) -> None:
    load(tuned).save(tmp_path / "copy")
    config = read_json(tmp_path / "copy" / "config.json")
    assert config["parts"]["task_head"] == {**HEAD, "truncate": "tail"}
    (tmp_path / "copy" / "manifest.json").unlink(missing_ok=True)
    write_json(tmp_path / "copy" / "config.json", {**config, "parts": {**config["parts"], "task_head": HEAD}})
    assert predict(load(tmp_path / "copy"), "the film was great")[0].label == "good"

"""`train`, `finetune` and `plan` from a program: keywords, sections, the default directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.errors import ConfigError, DataError, UsageError
from foretell.finding import default_run_directory
from foretell.runs.run import Run
from foretell.storage.files import read_json

TEXT = "The cat sat on the mat. The dog sat on the log.\n" * 60
CPU: dict[str, Any] = {"device": "cpu", "progress": False}
TOY: dict[str, Any] = {"size": "toy", **CPU}
SMALL: dict[str, Any] = {"size": "toy", "device": "cpu", "model": {"width": 16, "context_length": 16}}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cats.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_keywords_are_fields_of_the_training_section(text: Path) -> None:
    model = foretell.train(
        text,
        steps=2,
        batch_size=3,
        learning_rate=2e-3,
        seed=7,
        tokenizer={"kind": "bytes"},
        training={"momentum": 0.5},
        **SMALL,
    )
    training = Run(Path("runs/cats")).record().section("training")
    expected = {"steps": 2, "batch_size": 3, "learning_rate": 2e-3, "seed": 7, "momentum": 0.5}
    assert {name: training[name] for name in expected} == expected
    assert (model.config.width, model.tokenizer.kind) == (16, "bytes")


def test_options_of_the_command_line_are_keywords(text: Path) -> None:
    model = foretell.train(text, kind="bytes", steps=2, checkpoint_every=1, sample_prompt=["The"], **SMALL)
    training = Run(Path("runs/cats")).record().section("training")
    assert (training["checkpoint_every"], training["sample_prompts"]) == (1, ["The"])
    assert model.tokenizer.kind == "bytes"


def test_without_out_the_run_is_named_after_the_data(text: Path) -> None:
    for directory in ("runs/cats", "runs/cats-2"):
        assert str(default_run_directory([text])) == directory
        assert str(default_run_directory([text], resume=True)) == "runs/cats"
        Path(directory).mkdir(parents=True)
    assert str(default_run_directory(["birds.csv.gz"])) == "runs/birds"
    assert str(default_run_directory(["two\nlines\x1b.txt"])) == "runs/two_lines_"
    assert str(default_run_directory([])) == "runs/reference"
    assert str(default_run_directory(["-"])) == "runs/stdin"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 2, "training": {"steps": 3}}, "steps is given twice"),
        ({"step": 2}, "unknown option of train: 'step', did you mean 'steps'"),
        ({"lr": 2, "task": "forecast"}, "unknown option of train: 'lr' .*learning_rate"),
        ({"resume": "yes"}, "resume must be True or False, not 'yes'"),
        ({"data": {"text_feild": "x"}}, "did you mean 'text_field'"),
        ({"tokenizer": {"kindd": "x"}}, "did you mean 'kind'"),
        ({"model": 5}, "model is a section, a dict of its fields, not int"),
        ({"training": 5}, "training is a section, a dict of its fields, not int"),
        ({"codec": 5, "task": "forecast"}, "codec is a section, a dict of its fields, not int"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(text: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        foretell.train(text, **{**SMALL, **options})
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: foretell.train([]), "no files were given: the list is empty"),
        (lambda: foretell.train((), task="forecast"), "no files were given"),
        (lambda: foretell.read_series([]), "no files were given"),
        (lambda: foretell.finetune("primer", [], task="text"), "no files were given"),
        (lambda: foretell.finetune("primer", [], task="chat"), "no files were given"),
        (lambda: foretell.finetune("primer", []), "no rows were given: the list is empty"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(text: Path, call: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^{message}"):
        call()
    assert not Path("runs").exists()


def test_a_tokenizer_is_one_or_a_dict(text: Path) -> None:
    with pytest.raises(UsageError, match="tokenizer must be a Tokenizer or a dict of fields, not str"):
        foretell.train(text, tokenizer="bpe", **SMALL)  # pyrefly: ignore


def test_a_chat_is_tuned_as_on_the_command_line(text: Path) -> None:
    rows = [{"prompt": f"Who sat on {place}?", "completion": "The cat."} for place in ("a mat", "a log", "a bed")] * 4
    Path("chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    start = foretell.train(
        text, "runs/start", steps=2, tokenizer={"kind": "bytes"}, model={"context_length": 64}, **TOY
    )
    tuned = foretell.finetune(
        "runs/start", "chats.jsonl", task="chat", template="plain", training={"steps": 2}, lora={"rank": 2}, **CPU
    )
    record = Run(Path("runs/chats")).record()
    assert (record.verb, record.task["template"]) == ("finetune --task chat", "plain")
    assert (record.section("training")["steps"], record.section("lora")["rank"]) == (2, 2)
    assert (tuned.config.width, tuned.tokenizer.vocab_size) == (start.config.width, start.tokenizer.vocab_size)


def test_pretraining_continues_and_measures_what_is_forgotten(text: Path) -> None:
    foretell.train(text, "runs/start", steps=2, tokenizer={"kind": "bytes"}, model={"context_length": 16}, **TOY)
    Path("birds.txt").write_text("The bird sang in the tree.\n" * 60)
    options: dict[str, Any] = {"task": "text", "training": {"steps": 2, "batch_size": 2}, **CPU}
    foretell.finetune("runs/start", ["birds.txt"], "runs/on", **options)
    report = read_json(Path("runs/on/report.json"))
    assert report["after"]["old_domain"]["tokens"] > 0  # the held-out text of the run to start from
    foretell.finetune("runs/start", ["birds.txt"], "runs/with", old_domain=[text], **options)
    assert read_json(Path("runs/with/report.json"))["old_domain"] == str(text)
    foretell.finetune("runs/start", ["birds.txt"], "runs/on", resume=True, **options)
    assert not Path("runs/birds").exists()


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        ("chatt", "x.csv", "did you mean 'chat'"),
        ("classify", ["a.csv", "b.csv"], "classify takes one file"),
        ("classify", {}, "not dict"),
        ("text", {}, "not dict"),
    ],
)
def test_a_wrong_task_or_data_is_refused(text: Path, task: Any, data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        foretell.finetune("primer", data, task=task)
    assert not Path("runs").exists()


def test_an_unknown_option_is_refused_before_the_model_is_read(text: Path) -> None:
    with pytest.raises(ConfigError, match="unknown option of finetune for classify: 'epoch', did you mean 'epochs'"):
        foretell.finetune("no model", "x.csv", epoch=2)  # pyrefly: ignore


def test_a_plan_has_the_figures_of_the_command_line() -> None:
    plan = foretell.plan("gpt2-xl", 30e9, gpus=8, gpu="h100", training={"parallel": "fsdp"})
    figures = plan.to_json()
    assert (figures["gpus"], figures["training"]["parallel"]) == (8, "fsdp")
    assert "device hours" in str(plan)
    assert foretell.plan("tiny", gpu="h100", only="generating").trained is None
    with pytest.raises(UsageError, match="gpus 0"):
        foretell.plan("tiny", gpus=0)

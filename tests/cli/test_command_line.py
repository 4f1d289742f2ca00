"""Which function a verb calls: chosen by --task, or by the kind of the model."""

from __future__ import annotations

import json

import pytest

from foretell.cli import command_line
from foretell.cli.command_line import choose_function, rewrite
from foretell.cli.main import run


def test_train_without_a_task_is_the_text_task():
    assert choose_function("train", "default", ["train", "a.txt"]) == "default"
    assert choose_function("train", "default", ["train", "a.txt", "--task", "text"]) == "foretell.cli.train:train"


@pytest.mark.parametrize("task", [["--task", "text"], ["--task=text"]])
def test_the_chosen_function_does_not_see_the_task(task):
    assert rewrite(["train", "a.txt", *task, "--steps", "2"]) == ["train", "a.txt", "--steps", "2"]


def test_a_task_that_has_no_function_of_its_own_stays():
    arguments = ["evaluate", "primer", "a.jsonl", "--task", "choice"]
    assert rewrite(arguments) == arguments


def test_words_after_two_hyphens_choose_nothing():
    assert rewrite(["train", "--", "--task", "text"]) == ["train", "--", "--task", "text"]


def test_an_unknown_task_is_one_line_with_what_is_known(capsys):
    assert run(["train", "a.txt", "--task", "texts"]) == 2
    assert "unknown task 'texts', did you mean 'text'?; known: text, forecast, translate" in capsys.readouterr().err


def test_the_kind_of_a_model_chooses(tmp_path, monkeypatch):
    monkeypatch.setitem(command_line.BY_MODEL, "evaluate", {"codec": "elsewhere:evaluate"})
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "foretell", "format": 2, "parts": {"numbers": {"kind": "codec"}}}), encoding="utf-8"
    )
    assert choose_function("evaluate", "default", ["evaluate", str(tmp_path), "x.csv"]) == "elsewhere:evaluate"
    assert choose_function("evaluate", "default", ["evaluate", "primer", "x.csv"]) == "default"
    assert choose_function("evaluate", "default", ["evaluate", str(tmp_path / "missing"), "x.csv"]) == "default"

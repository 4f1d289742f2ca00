"""Which function a verb calls; options of other programs are taken or answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretell.cli import command_line
from foretell.cli.arguments import read_whole_numbers
from foretell.cli.command_line import choose_function, rewrite, sections
from foretell.cli.main import VERBS, make_app, run


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


# --- options of other programs ---------------------------------------------------------------------------------------


ARGUMENTS = {
    "finetune": ["RUN", "CORPUS"],
    "train": ["CORPUS"],
    "generate": ["RUN", "The"],
    "next": ["RUN", "The"],
    "runs": ["RUN"],
}


@pytest.mark.parametrize(
    ("verb", "option", "expected"),
    [
        ("train", "--epochs", "--steps or --minutes"),
        ("train", "--n-layer", "--model.num-layers"),
        ("train", "--weight-decay", "--training.weight-decay"),
        ("train", "--sed", "did you mean --seed?"),
        ("train", "--eval-every", "--training.evaluate-every"),
        ("train", "--early-stopping", "--training.patience"),
        ("finetune", "--weight-decay", "--training.weight-decay"),
        ("finetune", "--eval-every", "--training.evaluate-every"),
        ("finetune", "--early-stopping", "--training.patience"),
        ("generate", "--num-samples", "several PROMPTS"),
        ("runs", "--yes", "echo y | foretell runs --delete NAME"),
        ("generate", "--interactive", "- to read one from standard input"),
        ("generate", "--max-token", "did you mean --max-tokens?"),
        ("next", "--top-k", "--top N"),
        ("next", "--model", "the first argument"),
    ],
)
def test_an_option_of_another_program_leads_to_ours(foretell, trained, corpus, verb, option, expected):
    paths = {"CORPUS": str(corpus), "RUN": str(trained)}
    outcome = foretell(verb, *(paths.get(argument, argument) for argument in ARGUMENTS[verb]), option, "3")
    assert outcome.code == 2
    assert option in outcome.last_line
    assert expected in outcome.last_line


def test_words_without_quotes_are_said_to_be_several_prompts(foretell, trained):
    outcome = foretell("generate", trained, "The", "cat", "--max-tokens", "1").succeeds()
    assert "2 prompts, each continued by itself; quote a prompt of several words" in outcome.err
    assert "2 prompts" not in foretell("generate", trained, "The cat", "A dog", "--max-tokens", "1").err


def test_nothing_is_suggested_for_an_option_that_resembles_none(foretell, trained):
    assert "did you mean" not in foretell("generate", trained, "The", "--quiet", "3").last_line.lower()


def test_options_that_mean_the_same_are_taken(foretell, trained, corpus):
    ours = foretell("generate", trained, "The", "--max-tokens", "4", "--temperature", "0").out
    assert foretell("generate", trained, "The", "--max-new-tokens", "4", "--temp=0").out == ours
    options = ["--size", "toy", "--kind", "bytes", "--max-steps", "1", "--batch-size", "3", "--lr", "0.5", "--out", "r"]
    assert foretell("train", corpus, *options).code == 0
    training = json.loads(Path("r/run.json").read_text(encoding="utf-8"))["config"]["training"]
    assert (training["steps"], training["batch_size"], training["learning_rate"]) == (1, 3, 0.5)


def test_an_option_without_its_value_is_the_one_to_blame(foretell, trained, corpus):
    outcome = foretell("finetune", trained, corpus, "--freeze", "--out", "X")
    assert (outcome.code, outcome.last_line) == (2, "foretell: --freeze needs a value")


def test_every_field_of_the_configuration_is_explained(foretell):
    outcome = foretell("train", "--help-config").succeeds()
    for section, fields in sections().items():
        assert f"[{section}]" in outcome.out
        for name, info in fields.model_fields.items():
            assert info.description, f"{section}.{name} has no description"
            assert f"--{section}.{name.replace('_', '-')} " in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_the_help_of_train_shows_the_most_used_fields(foretell):
    text = foretell("train", "--help").out
    for field in ("--training.batch-size", "--training.learning-rate", "--model.context-length", "--help-config"):
        assert field in text


@pytest.mark.parametrize("verb", [*VERBS, "tokenizer train"])
def test_an_option_that_is_an_integer_is_not_rounded(verb):
    app = make_app()[verb.split()[0]]
    app = app[verb.split()[1]] if " " in verb else app
    options = app.assemble_argument_collection()
    read_whole_numbers(app, (), options)
    for argument in options:
        if argument.hint in (int, int | None):
            assert argument.parameter.converter is not None, argument.names


@pytest.mark.parametrize("option", ["--max-tokens", "--seed", "--top-k"])
def test_half_a_token_is_refused(foretell, trained, option):
    foretell("generate", trained, "The", option, "1.5").fails(2, f"{option}: '1.5' is not an integer")


def test_text_that_looks_like_a_field_is_answered_as_text(foretell, trained):
    line = foretell("generate", trained, "--model.width").last_line
    assert "--set" not in line
    assert "Text that begins with a hyphen goes after --" in line


def test_the_command_alone_shows_where_to_start(foretell):
    outcome = foretell().succeeds()
    assert "foretell demo" in outcome.out and "Options:" not in outcome.out
    assert all(f"foretell {verb} " in outcome.out for verb in ("lesson", "train", "finetune", "explain", "serve"))

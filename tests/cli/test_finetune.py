"""The verbs finetune, predict, evaluate and explain on a tuned model, and chats, from files as a new user has them."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from foretell import finetune, train
from foretell.errors import OutputError

ROWS = "".join(
    f"the {thing} was {word},{label}\n"
    for thing in ("cat", "dog", "log", "mat") * 3
    for word, label in (("good", "yes"), ("bad", "no"))
)
SHORT = ["--training.steps", "3", "--training.batch-size", "4"]
PAIRS = "".join(
    f'{{"premise": "the {a} sat", "hypothesis": "a {b} sat", "label": "{a == b}"}}\n'
    for a in ("cat", "dog")
    for b in ("cat", "dog")
    for _ in range(4)
)
CHOICES = "".join(f"who sat,the cat,the log,{row % 2}\n" for row in range(16))
SCORES = "".join(
    f"the cat {word}\t{number}\n" for word, number in (("sat", 1.5), ("ran", 2.5), ("lay", 3)) for _ in range(4)
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "reviews.csv").write_text("text,label\n" + ROWS, encoding="utf-8")
    (tmp_path / "pairs.jsonl").write_text(PAIRS, encoding="utf-8")
    (tmp_path / "choices.csv").write_text("question,answer1,answer2,label\n" + CHOICES, encoding="utf-8")
    (tmp_path / "scores.tsv").write_text(SCORES, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("verb", ["finetune no-such-model", "finetune --task chat no-such-model", "train"])
@pytest.mark.parametrize("resume", [[], ["--resume", "auto"]], ids=["new", "resumed"])
def test_a_folder_that_is_no_run_is_refused_before_anything_is_read(foretell, tmp_path, verb, resume):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    outcome = foretell(*verb.split(), "no-such-file.csv", "--out", "mine", *resume)
    outcome.refuses(1, "mine exists; it is not a run, so give another --out")
    assert "reading" not in outcome.err


@pytest.mark.parametrize("task", ["classify", "chat", "text"])
def test_a_file_whose_words_the_model_does_not_have_is_reported(foretell, files, task):
    chats = [{"prompt": f"why does it zigzag {row} times", "completion": "bees always do"} for row in range(20)]
    rows = "".join(f"bees zigzag {row} times,{row % 2}\n" for row in range(20))
    (files / "rows.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    (files / "chats.jsonl").write_text("".join(json.dumps(each) + "\n" for each in chats), encoding="utf-8")
    (files / "text.txt").write_text("bees zigzag always.\n" * 200, encoding="utf-8")
    data = {"classify": "rows.csv", "chat": "chats.jsonl", "text": "text.txt"}[task]
    outcome = foretell("finetune", "atlas", data, "--task", task, "--training.steps", "1", "--out", "x").succeeds()
    assert re.search(r"vocabulary  \d\d% of the tokens are <\|unknown\|>: words", outcome.err)


def test_python_refuses_an_out_that_exists_before_it_loads_the_model(tmp_path):
    with pytest.raises(OutputError, match="exists; it is not a run, so give another out"):
        finetune("no-such-model", "no-such-file.csv", tmp_path.parent)
    with pytest.raises(OutputError, match="exists; it is not a run, so give another out"):
        train("no-such-file.csv", tmp_path.parent, task="forecast", start_from="no-such-model")


@pytest.mark.parametrize(
    ("arguments", "figure", "prediction", "answer"),
    [
        (["reviews.csv"], "accuracy", ["the cat was good"], "label"),
        (
            ["scores.tsv", "--task", "regress", "--columns", "text,score", "--pool", "mean"],
            "rmse",
            ["the cat"],
            "value",
        ),
        (
            ["pairs.jsonl", "--task", "entailment", "--class-weights", "balanced"],
            "macro_f1",
            ["the cat", "a dog"],
            "label",
        ),
        (["pairs.jsonl", "--task", "similarity", "--lm-weight", "0"], "accuracy", ["the cat", "a dog"], "label"),
        (
            ["choices.csv", "--task", "choice", "--best-by", "accuracy"],
            "accuracy",
            ["who sat", "a cat", "a log"],
            "label",
        ),
    ],
)
def test_every_task_from_a_file_to_a_prediction(
    foretell, trained, files, pictures, arguments, figure, prediction, answer
) -> None:
    outcome = foretell("finetune", trained, *arguments, *SHORT, "--out", "run", "--json").succeeds()
    report = json.loads((files / "run" / "report.json").read_text(encoding="utf-8"))
    assert outcome.json == report
    assert figure in report["dev"]
    rules = ("the most frequent label", "the mean of the labels in training", "TF-IDF of words and bigrams")
    assert report["baseline"]["rule"].startswith(rules)
    assert answer in foretell("predict", "run", *prediction, "--json").json
    stored, loaded = foretell("info", "run", "--json").json, foretell("info", "run", "--names", "--json").json
    assert stored["weights"] == loaded["weights"] and stored["weights"][-1]["path"] == "task_head.weight"
    assert stored["parameters"] == sum(math.prod(weight["shape"]) for weight in stored["weights"])


def test_data_alone_trains_a_new_model(foretell, files) -> None:
    foretell("finetune", "reviews.csv", *SHORT, "--out", "run").succeeds()
    assert json.loads((files / "run" / "run.json").read_text(encoding="utf-8"))["from_scratch"] is True
    assert "give DATA, or MODEL and DATA" in foretell("finetune", "primer", "--out", "other").err


def test_a_row_without_a_text_has_the_keys_of_its_task(foretell, trained, files) -> None:
    (files / "texts.csv").write_text("text,other\n,1\n", encoding="utf-8")
    options = ("--task", "regress", "--columns", "text,score")
    assert foretell("finetune", trained, "scores.tsv", *options, *SHORT, "--out", "run").code == 0
    assert foretell("predict", "run", "texts.csv", "--json").json == {"value": None, "row": {"text": "", "other": "1"}}


def test_runs_of_tasks_compare_where_task_and_examples_are_the_same(foretell, trained, files) -> None:
    short = ["--training.steps", "1", "--training.batch-size", "4"]
    (files / "copy.csv").write_text("text,label\n" + ROWS, encoding="utf-8")
    started = {}
    for name, arguments in {
        "one": ["reviews.csv", "--pool", "last", "--lm-weight", "0"],
        "two": ["copy.csv"],
        "three": ["scores.tsv", "--task", "regress", "--columns", "text,score"],
    }.items():
        started[name] = foretell("finetune", trained, *arguments, *short, "--out", f"runs/{name}")
        assert started[name].code == 0, started[name].err
    explained = "loss        of the task and 0.5 x language modelling in training; of the task alone in validation"
    assert [explained in outcome.err for outcome in started.values()] == [False, True, True]
    listed = {line.split()[0]: line.split() for line in foretell("runs").out.splitlines() if line}
    letters = {name: listed[name][5][-1] for name in started}
    assert letters["one"] == letters["two"] != letters["three"]
    assert int(listed["one"][4]) > 4  # tokens, not examples
    assert "cannot be compared" not in foretell("runs", "one", "two").out
    assert "cannot be compared" in foretell("runs", "one", "three").out
    evaluated = foretell("evaluate", "three", "scores.tsv", "--columns", "text,score", "--json").json
    head = json.loads((files / "runs" / "three" / "run.json").read_text(encoding="utf-8"))["config"]["head"]
    assert evaluated["baseline"]["value"] == head["mean"]  # of the training, not of the evaluated file


def test_a_finished_run_keeps_its_report_without_another_fit(foretell, trained, files, monkeypatch) -> None:
    arguments = ["finetune", trained, "reviews.csv", *SHORT, "--out", "run"]
    assert foretell(*arguments).code == 0
    report = Path("run/report.json").read_bytes()
    monkeypatch.delattr("foretell.finetuning.finetune.tuned_baseline")
    outcome = foretell("finetune", "--out", "run", "--resume", "auto").succeeds()
    assert "has all its 3 steps" in outcome.err
    assert "baseline    " in outcome.err
    assert Path("run/report.json").read_bytes() == report


def test_a_tuned_model_can_be_looked_into(foretell, trained, files, monkeypatch) -> None:
    assert foretell("finetune", trained, "reviews.csv", *SHORT, "--out", "run").code == 0
    shown = foretell("explain", "run", "the cat was good", "--prediction", "--html", "page.html")
    assert "by word" in shown.out
    assert "by token" in foretell("explain", "run", "the cat was good", "--prediction", "--pieces").out
    answer = foretell("explain", "run", "the cat was good", "--prediction", "--json").json
    assert [word["text"] for word in answer["words"]] == ["the", " cat", " was", " good"]
    assert "trunk.blocks.0.attention.core[0]" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "<table" in (files / "page.html").read_text(encoding="utf-8")
    assert "7 tokens" in foretell("explain", "run", "the cat", "--as-task", "--html", "pass.html").out  # bytes
    evaluated = foretell("evaluate", "run", "reviews.csv", "--json").json
    assert evaluated["examples"] == 24
    assert foretell("evaluate", "run", "reviews.csv", "--limit", "9", "--json").json["examples"] == 9
    assert foretell("evaluate", "run", "reviews.csv", "--task", "text").code == 0
    assert foretell("generate", "run", "the cat", "--max-tokens", "3").code == 0
    refused = foretell("predict", "run", "")
    assert (refused.code, refused.out) == (2, "")
    assert refused.last_line == "foretell: the text is empty; give at least one character"
    assert foretell("predict", "run", "reviews.csv", "--out", "out.csv").code == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n\nthe dog\n")))
    piped = foretell("predict", "run", "-", "--json")
    answers = [json.loads(line)["label"] for line in piped.out.splitlines()]
    assert [answer is None for answer in answers] == [False, True, False]
    reviews = (files / "reviews.csv").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(reviews)))
    assert foretell("evaluate", "run", "-", "--json").json["examples"] == 24
    missing = foretell("predict", "run", "missing.csv")
    refusal = "foretell: missing.csv: no such file; to predict this text, give - and the text on standard input"
    assert (missing.code, missing.last_line) == (1, refusal)
    (files / "book.xlsx").write_bytes(b"PK")
    assert "a file of another kind" in foretell("predict", "run", "book.xlsx").last_line
    assert (files / "out.csv").read_text(encoding="utf-8").startswith("text,label,predicted_label,probability_no,")


# --- chats -----------------------------------------------------------------------------------------------------------


TURNS = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "a\tb\nc"}]
OPTIONS = ["--task", "chat", "--template", "plain", "--training.batch-size", "4", "--training.learning-rate", "1e-3"]


def test_from_a_file_to_a_conversation_and_back(foretell, monkeypatch, tmp_path):
    rows = [{"prompt": f"what is {n}?", "completion": "a number."} for n in range(12)]
    (tmp_path / "n.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    outcome = foretell("finetune", "primer", "n.jsonl", *OPTIONS, "--epochs", "1").succeeds()
    assert "template    plain: as requested" in outcome.err
    assert "on held-out answers" in outcome.out and "chat runs/n" in outcome.out

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"what is 3?\n/save c.json\n")))
    assert foretell("chat", "n", "--max-tokens", "6", "--temperature", "0").code == 0

    (tmp_path / "m.jsonl").write_text(json.dumps({"messages": TURNS}) + "\n", encoding="utf-8")
    recognised = foretell("evaluate", "n", "m.jsonl", "--base", "primer").succeeds()
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": TURNS}]), tmp_path / "m.parquet")
    assert "Answers to m.parquet" in foretell("evaluate", "n", "m.parquet").succeeds().out
    assert "Answers to m.jsonl" in recognised.out and "a b ⏎ c" in recognised.out
    assert "losses are over different tokens" in recognised.out
    refused = foretell("evaluate", "n", "m.jsonl", "--base", "almanac")
    assert refused.last_line.endswith("almanac has no conversations; use it with: foretell forecast almanac DATA")
    (tmp_path / "both.jsonl").write_text(json.dumps({"messages": TURNS, "text": "a text"}) + "\n", encoding="utf-8")
    assert "bits_per_byte" in foretell("evaluate", "n", "both.jsonl", "--json").json

    compared = ["evaluate", "n", "n.jsonl", "--task", "chat", "--base", "primer"]
    result = foretell(*compared, "--questions", "2", "--limit", "6", "--json").json
    assert [each["model"] for each in result["models"]] == ["n", "primer"]
    assert [each["template"] for each in result["models"]] == ["plain", "chatml"]
    assert {each["conversations"] for each in result["models"]} == {6}
    assert result["models"][0]["loss"] < result["models"][1]["loss"]  # it was tuned on them
    assert [each["question"] for each in result["questions"]] == ["what is 0?", "what is 1?"]
    assert all(
        each["answer"] == "a number." and set(each["answers"]) == {"n", "primer"} for each in result["questions"]
    )
    assert all(set(each["cut"]) <= {"n", "primer"} for each in result["questions"])
    shown = foretell(*compared, "--questions", "1", "--limit", "2", "--html", "page.html")
    assert "what is 0?" in shown.out and "in the data" in shown.out
    assert "what is 0?" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert foretell("evaluate", "n", "--task", "chat").last_line.endswith("give one or more files of conversations")

    options = ["--steps", "1", "--data.validation-fraction", "0", "--show-batch", "--out", "y"]
    outcome = foretell("finetune", "n", "c.json", "--task", "chat", *options).succeeds()
    assert "template    plain: the model's own" in outcome.err
    assert "tokens are learned" in outcome.out and "- is masked" in outcome.out
    assert foretell("finetune", "--task", "chat", "--out", "y", "--resume", "auto").code == 0
    assert [run["state"] for run in foretell("runs", "y", "--json").json["runs"]] == ["done"]

"""`foretell evaluate`: what it prints, on texts and on questions."""

from __future__ import annotations

import json
import math

import pytest

from foretell import evaluate, load
from foretell.errors import UsageError

QUESTION = {"query": "The cat sat on the", "choices": ["mat.", "moon, which is far away."], "gold": 0}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "cats.txt").write_text("The cat sat on the mat. The dog sat on the log.\n" * 4)
    (tmp_path / "texts.jsonl").write_text('{"body": "The cat sat."}\n{"body": "The dog sat."}\n')
    (tmp_path / "choice.jsonl").write_text(f"{json.dumps(QUESTION)}\n" * 3)
    (tmp_path / "ending.jsonl").write_text('{"context": "The cat sat on the", "continuation": "mat"}\n')
    return tmp_path


def test_a_text_has_loss_perplexity_and_bits_per_byte(foretell, trained, files):
    found = foretell("evaluate", trained, "cats.txt", "--json").json
    assert set(found) == {"loss", "perplexity", "bits_per_byte", "tokens", "stride", "used_before"}
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))  # a token is a byte here
    assert (found["tokens"], found["stride"]) == (4 * 48 - 1, 16)


def test_a_text_within_the_context_has_the_score_of_score(foretell, trained, files):
    (files / "short.txt").write_text("The cat sat.")
    found = foretell("evaluate", trained, "short.txt", "--json").json
    scored = foretell("score", trained, "The cat sat.", "--json").json
    assert found["perplexity"] == pytest.approx(scored["perplexity"], rel=1e-4)


def test_the_stride_is_printed_and_can_be_chosen(foretell, trained, files):
    for options, words in (([], "stride 16: each from 16 tokens"), (["--stride", "4"], "stride 4: each from 28")):
        shown = " ".join(foretell("evaluate", trained, "cats.txt", *options).out.split())
        assert f"context 32 {words}" in shown


def test_texts_come_from_every_kind_of_source(foretell, trained, files):
    outcome = foretell("evaluate", trained, "texts.jsonl", "--text-field", "body")
    assert "tokens 22 predicted, 22 bytes of 2 texts" in " ".join(outcome.out.split())
    assert max(len(line) for line in outcome.out.splitlines()) <= 80


def test_questions_are_recognised_by_their_fields(foretell, trained, files):
    found = foretell("evaluate", trained, "choice.jsonl", "--json").json
    assert (found["task"], found["questions"]) == ("choice", 3)
    assert found["accuracy"] in (0, 1)
    assert found["accuracy_stderr"] == 0
    outcome = foretell("evaluate", trained, "choice.jsonl")
    assert "questions 3 guessing would get 50.00%" in " ".join(outcome.out.split())
    assert "3 of 3 are longer than the context of 32" in outcome.err


def test_only_the_first_texts_or_questions_are_evaluated_with_a_limit(foretell, trained, files):
    assert foretell("evaluate", trained, "choice.jsonl", "--limit", "2", "--json").json["questions"] == 2
    outcome = foretell("evaluate", trained, "texts.jsonl", "--text-field", "body", "--limit", "1")
    assert "of 1 text\n" in outcome.out


@pytest.mark.parametrize(("wrong", "words"), [({"task": "quiz"}, "known: text, choice"), ({"limit": True}, "not True")])
def test_wrong_arguments_from_python_are_refused(trained, files, wrong, words):
    with pytest.raises(UsageError, match=words):
        evaluate(load(trained), "cats.txt", **wrong)


def test_a_note_on_a_file_appears_once(foretell, trained, tmp_path):
    (tmp_path / "marked.csv").write_text("\ufefftext;b\nThe cat;2\n", encoding="utf-8")
    lines = foretell("evaluate", trained, "marked.csv").err.splitlines()
    assert sum(line.startswith(("byte order mark", "separator")) for line in lines) == 2


@pytest.mark.parametrize("separator", ["", " "])
def test_an_answer_is_scored_as_written_after_the_separator(foretell, trained, files, separator):
    outcome = foretell("evaluate", trained, "ending.jsonl", "--separator", separator, "--json")
    tokens = foretell("score", trained, f"The cat sat on the{separator}mat", "--json").json["tokens"]
    answer = [token["logprob"] for token in tokens[len("The cat sat on the") :]]  # a token is a byte here
    assert math.log(outcome.json["perplexity"]) == pytest.approx(-sum(answer) / len(answer), rel=1e-4)
    assert ("1 of 1 answers follow their question without white space" in outcome.err) == (separator == "")
    assert evaluate(load(trained), "ending.jsonl", separator=separator).to_json() == outcome.json


def test_endings_are_recognised_by_their_fields(foretell, trained, files):
    assert foretell("evaluate", trained, "ending.jsonl", "--json").json["task"] == "ending"
    assert foretell("evaluate", trained, "ending.jsonl").out.splitlines()[-1].split() == ["endings", "1"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["cats.txt", "--stride", "0"], 2, "stride must be a whole number, 1 or more, not 0"),
        (["cats.txt", "--stride", "33"], 2, "stride must be 1 to 32"),
        (["choice.jsonl", "--stride", "4"], 2, "read as questions"),
        (["-", "--task", "choice"], 2, "from a file"),
        (["cats.txt", "--task", "choice"], 1, "cats.txt, line 1: not JSON"),
        (["cats.txt", "--task", "quiz"], 2, "quiz"),
        (["cats.txt", "--limit", "0"], 2, "--limit. 0 is less than 1"),
        (["texts.jsonl"], 1, "texts.jsonl has the fields body; questions have the fields query, choices, gold"),
        (["texts.jsonl"], 1, "--text-field"),
        (["choice.jsonl", "--prompt-field", "query"], 2, "give both"),
        (["cats.txt", "--separator", ":"], 2, "give --prompt-field and --answer-field"),
        (["choice.jsonl", "--task", "choice", "--rows"], 2, "read as questions"),
        (["missing.txt"], 1, "missing.txt"),
        (["ending.jsonl", "--task", "text"], 1, "no field 'text'"),
    ],
)
def test_bad_input_to_evaluate_is_one_line(foretell, trained, files, arguments, code, words):
    foretell("evaluate", trained, *arguments).refuses(code, words)

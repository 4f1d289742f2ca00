"""`foretell lesson`: the list, the lessons, the checks, and the errors."""

from __future__ import annotations

import io
import sys

import pytest

from foretell.lessons.mask import LEAK
from foretell.lessons.registry import ENTRIES
from foretell.lessons.smallest import PRINTED_WEIGHTS, QUERY_WEIGHT


def test_lists_all_lessons_without_a_name(foretell):
    outcome = foretell("lesson").succeeds()
    assert outcome.out.splitlines()[0].split()[:2] == ["smallest", "E1"]
    assert len(outcome.out.splitlines()) == 10
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert foretell("lesson", "--json").json["lessons"][0]["name"] == "smallest"


def test_prints_a_lesson_by_name_and_by_number(foretell):
    by_name, by_number = foretell("lesson", "smallest"), foretell("lesson", "e1")
    assert by_name.code == 0
    assert by_name.out == by_number.out
    assert "0.226309" in by_name.out
    assert foretell("lesson", "smallest", "--json").json["text"] == by_name.out.rstrip("\n")


def test_writes_a_lesson_as_a_page(foretell, tmp_path):
    outcome = foretell("lesson", "mask", "--html", "mask.html")
    assert (outcome.code, outcome.out) == (0, "")
    assert "<!doctype html>" in (tmp_path / "mask.html").read_text(encoding="utf-8")


def test_ask_puts_a_question_to_the_trained_toy(foretell):
    assert (
        "living in amsterdam is how <EOS>  exciting <EOS>  stopped"
        in foretell("lesson", "toy", "--ask", "Living in Amsterdam is how?").out
    )


def test_the_smallest_decoder_reads_the_readers_sentence(foretell):
    outcome = foretell("lesson", "smallest", "--text", "my five words here now", "--seed", "3").succeeds()
    assert "The sentence is: my five words here now!" in outcome.out
    checked = foretell("lesson", "smallest", "--text", "my five words here now", "--seed", "3", "--check").succeeds()
    assert checked.out.splitlines()[0].split()[:2] == ["smallest", "skipped"]
    assert "skipped: the source prints figures of another sentence" in checked.out


def test_break_shows_the_training_error(foretell):
    outcome = foretell("lesson", "mask", "--break").succeeds()
    assert f"foretell: {LEAK} sees the future, so no step was taken" in outcome.out


def test_an_exercise_reads_an_answer_and_judges_it(foretell, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("50\n55\n"))
    wrong, right = (foretell("lesson", "mask", "--exercise", "1").succeeds().out for _ in range(2))
    assert "How many ones" in wrong
    assert "no, the answer is 55: 10 · 11 / 2" in wrong
    assert "right, 55: 10 · 11 / 2" in right


@pytest.mark.parametrize(("reply", "words"), [("", ["no answer", "standard input"]), ("many\n", ["'many'", "number"])])
def test_an_exercise_without_a_number_is_one_line(foretell, monkeypatch, reply, words):
    monkeypatch.setattr(sys, "stdin", io.StringIO(reply))
    foretell("lesson", "mask", "--exercise", "1").fails(2, *words)


def test_an_exercise_as_json(foretell, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("27\n"))
    judged = foretell("lesson", "mask", "--exercise", "2", "--json").json
    assert (judged["right"], judged["answer"], judged["reply"]) == (True, 27, "27")


def test_check_prints_json(foretell):
    outcome = foretell("lesson", "smallest", "--check", "--json")
    (lesson,) = outcome.json["lessons"]
    assert (outcome.code, lesson["name"], lesson["status"], lesson["reason"]) == (0, "smallest", "passed", "")
    assert set(lesson["checks"][0]) == {"what", "expected", "got", "tolerance", "passed"}
    assert "smallest     passed" in foretell("lesson", "smallest", "--check").out


def test_check_without_a_name_checks_all_lessons(foretell, monkeypatch):
    untrained = tuple(entry for entry in ENTRIES if "out" not in entry.options)  # training takes a minute
    monkeypatch.setattr("foretell.cli.lesson.ENTRIES", untrained)
    outcome = foretell("lesson", "--check").succeeds()
    lines = outcome.out.splitlines()
    assert [line.split()[1] for line in lines if line[0] != " "] == ["passed", "skipped", *["passed"] * 6]
    assert max(map(len, lines)) <= 80


def test_a_figure_that_differs_is_shown_with_exit_code_1(foretell, monkeypatch):
    monkeypatch.setitem(PRINTED_WEIGHTS, "query", [[0.4414, 0.5, -0.1353], *QUERY_WEIGHT[1:]])
    outcome = foretell("lesson", "smallest", "--check")
    assert outcome.code == 1
    assert "  query weight [0, 1]: expected 0.5, got 0.4792" in outcome.out
    assert "1 figure differs" in outcome.last_line


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["smalest"], 2, ["smalest", "smallest"]),
        (["E99"], 2, ["E99", "smallest"]),
        (["toy", "--at", "3"], 2, ["--at", "gpt2"]),
        (["gpt2", "--break"], 2, ["--break", "mask"]),
        (["--seed", "3"], 2, ["--seed", "toy"]),
        (["toy", "--seed", "-1"], 2, ["--seed", "-1"]),
        (["toy", "--ask", "how is paris"], 1, ["paris", "vocabulary"]),
        (["toy", "--model", "m"], 2, ["--model", "translation"]),
        (["translation", "--ask", "I am"], 2, ["--ask", "--model"]),
        (["translation", "--model", "nowhere"], 1, ["nowhere"]),
        (["toy", "--check", "--ask", "how"], 2, ["--check", "--ask"]),
        (["mask", "--ask", "how"], 2, ["--ask", "toy"]),
        (["toy", "--seed", str(2**63)], 2, ["--seed"]),
        (["--html", "x.html"], 2, ["--html", "NAME"]),
        (["toy", "--check", "--html", "x.html"], 2, ["--html", "--check"]),
        (["mask", "--check", "--break"], 2, ["--check", "--break"]),
        (["smallest", "--text", "hi"], 2, ["--text", "1 word"]),
        (["smallest", "--text", "don't go"], 2, ["don't", "not letters"]),
        (["toy", "--text", "hi there"], 2, ["--text", "smallest"]),
        (["mask", "--exercise", "4"], 2, ["--exercise 4", "has 3"]),
        (["mask", "--exercise", "0"], 2, ["--exercise 0", "has 3"]),
        (["--exercise", "1"], 2, ["--exercise 1", "lesson smallest"]),
        (["mask", "--exercise", "1", "--check"], 2, ["--exercise", "--check"]),
        (["mask", "--exercise", "1", "--break"], 2, ["--exercise", "--break"]),
        (["mask", "--html", "nowhere/x.html"], 1, ["nowhere/x.html", "folder"]),
        (["mask", "--html", "."], 1, ["folder"]),
        (["gpt2", "--at", "120"], 2, ["120", "0 to 119"]),
        (["gpt2", "--weights", "nowhere"], 1, ["nowhere"]),
        (["--check", "--weights", "nowhere"], 1, ["nowhere"]),
    ],
)
def test_invalid_arguments_give_one_line(foretell, tmp_path, arguments, code, words):
    foretell("lesson", *arguments).fails(code, *words)
    assert list(tmp_path.iterdir()) == []

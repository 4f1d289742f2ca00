"""`foretell lesson`: the list, the walks, the checks, and what is refused."""

from __future__ import annotations

import pytest

from foretell.lessons.mask.values import LEAK
from foretell.lessons.smallest_decoder import printed
from foretell.lessons.smallest_decoder.lesson import PRINTED_WEIGHTS


def test_without_a_name_the_lessons_are_listed(foretell):
    outcome = foretell("lesson")
    assert outcome.code == 0
    assert outcome.out.splitlines()[0].split()[:2] == ["smallest", "E1"]
    assert len(outcome.out.splitlines()) == 7
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert foretell("lesson", "--json").json["lessons"][0]["name"] == "smallest"


def test_a_walk_is_printed_by_name_and_by_number(foretell):
    by_name, by_number = foretell("lesson", "smallest"), foretell("lesson", "e1")
    assert by_name.code == 0
    assert by_name.out == by_number.out
    assert "0.226309" in by_name.out
    assert foretell("lesson", "smallest", "--json").json["text"] == by_name.out.rstrip("\n")


def test_a_walk_can_be_written_as_a_page(foretell, tmp_path):
    outcome = foretell("lesson", "mask", "--html", "mask.html")
    assert (outcome.code, outcome.out) == (0, "")
    assert "<!doctype html>" in (tmp_path / "mask.html").read_text(encoding="utf-8")


def test_breaking_the_mask_shows_the_refusal(foretell):
    outcome = foretell("lesson", "mask", "--break")
    assert outcome.code == 0
    assert f"foretell: {LEAK} sees the future, so no step was taken" in outcome.out


def test_checks_can_be_had_as_json(foretell):
    outcome = foretell("lesson", "smallest", "--check", "--json")
    (lesson,) = outcome.json["lessons"]
    assert (outcome.code, lesson["name"], lesson["status"], lesson["reason"]) == (0, "smallest", "passed", "")
    assert set(lesson["checks"][0]) == {"what", "expected", "got", "tolerance", "passed"}
    assert "smallest     passed" in foretell("lesson", "smallest", "--check").out


def test_all_lessons_are_checked_where_none_is_named(foretell):
    outcome = foretell("lesson", "--check")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert [line.split()[1] for line in lines if line[0] != " "] == ["passed", "skipped", *["passed"] * 5]
    assert max(map(len, lines)) <= 80


def test_a_figure_that_differs_is_shown_and_the_exit_code_is_1(foretell, monkeypatch):
    monkeypatch.setitem(PRINTED_WEIGHTS, "query", [[0.4414, 0.5, -0.1353], *printed.QUERY_WEIGHT[1:]])
    outcome = foretell("lesson", "smallest", "--check")
    assert outcome.code == 1
    assert "  query weight [0, 1]: expected 0.5, got 0.4792" in outcome.out
    assert "1 figure differs" in outcome.last_line


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["smalest"], 2, ["smalest", "smallest"]),
        (["E7"], 2, ["E7", "smallest"]),
        (["toy", "--at", "3"], 2, ["--at", "gpt2"]),
        (["gpt2", "--break"], 2, ["--break", "mask"]),
        (["--seed", "3"], 2, ["--seed", "toy"]),
        (["toy", "--seed", "-1"], 2, ["--seed", "-1"]),
        (["toy", "--seed", str(2**63)], 2, ["--seed"]),
        (["--html", "x.html"], 2, ["--html", "NAME"]),
        (["toy", "--check", "--html", "x.html"], 2, ["--html", "--check"]),
        (["mask", "--check", "--break"], 2, ["--check", "--break"]),
        (["mask", "--html", "nowhere/x.html"], 1, ["nowhere/x.html", "folder"]),
        (["mask", "--html", "."], 1, ["folder"]),
        (["gpt2", "--at", "120"], 2, ["120", "0 to 119"]),
        (["gpt2", "--weights", "nowhere"], 1, ["nowhere"]),
        (["--check", "--weights", "nowhere"], 1, ["nowhere"]),
    ],
)
def test_what_cannot_be_is_one_line(foretell, tmp_path, arguments, code, words):
    outcome = foretell("lesson", *arguments)
    assert outcome.code == code
    assert outcome.last_line.startswith("foretell: ")
    assert all(word in outcome.last_line for word in words)
    assert list(tmp_path.iterdir()) == []

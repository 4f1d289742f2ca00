"""`foretell explain`: the walk, one number, the comparison with the textbook, and errors for bad input."""

from __future__ import annotations

import pytest

from foretell.insight.explain import textbook_check

WEIGHT = "trunk.blocks.0.attention.core.weights[1,3,2]"


def test_one_number_is_shown_with_its_operands(foretell, trained):
    outcome = foretell("explain", trained, "The cat", "--value", WEIGHT)
    assert outcome.code == 0
    for words in ("head 1, query 3 ' ', key 2 'e'", "q · k", "√8", "-∞", "stored", "recomputed", "difference"):
        assert words in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_as_json_the_number_is_whole(foretell, trained):
    found = foretell("explain", trained, "The cat", "--value", WEIGHT, "--json").json
    assert (found["name"], found["index"]) == ("trunk.blocks.0.attention.core.weights", [1, 3, 2])
    assert found["agrees"]
    assert abs(found["stored"] - found["recomputed"]) <= found["rounding"]


def test_without_a_value_the_whole_pass_is_walked_through(foretell, trained):
    outcome = foretell("explain", trained, "The cat")
    for words in ("The text: 7 tokens", "Through the layers", "Where attention looks", "What follows 't'"):
        assert words in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert len(foretell("explain", trained, "The cat", "--json").json["layers"]) == 2


def test_the_textbook_stands_beside_the_model(foretell, trained):
    outcome = foretell("explain", trained, "The cat", "--check")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "The model computes what the textbook computes."
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert foretell("explain", trained, "The cat", "--check", "--json").json["holds"]


def test_a_broken_bound_is_a_failure(foretell, trained, monkeypatch):
    monkeypatch.setattr(textbook_check, "unembed", shifted(textbook_check.unembed))
    outcome = foretell("explain", trained, "The cat", "--check")
    assert outcome.code == 1
    assert "BROKEN" in outcome.out
    assert "does NOT compute" in outcome.last_line


def shifted(unembed):
    def wrong(config, model, x):
        return unembed(config, model, x) + 1.0

    return wrong


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["The cat", "--value", "trunk.blocks.0.attention.core.wieghts[1,3,2]"], 2, ["near it", "core.weights"]),
        (["The cat", "--value", "trunk.blocks.0.attention.core.weights[1,3]"], 2, ["(2, 7, 7)", "head 0 to 1"]),
        (["The cat", "--value", "trunk.blocks.0.attention.core.weights[1,3,7]"], 2, ["key 7", "key 0 to 6"]),
        (["The cat", "--value", "loss[6]"], 2, ["last"]),
        (["The cat", "--value", "x", "--check"], 2, ["--value", "--check"]),
        (["", "--value", WEIGHT], 2, ["empty"]),
        ([""], 2, ["empty"]),
        (["", "--check"], 2, ["empty"]),
        (["x" * 33], 1, ["33", "32"]),
        (["x" * 33, "--check"], 1, ["33", "32"]),
    ],
)
def test_what_cannot_be_explained_is_one_line(foretell, trained, arguments, code, words):
    outcome = foretell("explain", trained, *arguments)
    assert outcome.code == code
    assert all(word in outcome.last_line for word in words), outcome.last_line
    assert outcome.out == ""

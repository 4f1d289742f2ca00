"""`foretell explain`: what produced a prediction, as text and as JSON."""

from __future__ import annotations

import pytest

from foretell.insight.attribution.head_patterns import MEASURES

HEAD = "trunk.blocks.1.attention.core[0]"


def test_the_lens_reads_every_position_or_one(foretell, trained):
    positions = foretell("explain", trained, "The cat", "--lens", "--json").json["positions"]
    assert [item["position"] for item in positions] == list(range(7))
    alone = foretell("explain", trained, "The cat", "--lens", "--at", "2", "--json").json["positions"]
    assert [item["context"] for item in alone] == ["The"]
    assert "after 'The' (position 2)" in foretell("explain", trained, "The cat", "--lens", "--at", "2").out


def test_printed_contributions_add_up(foretell, trained):
    lines = foretell("explain", trained, "The cat", "--contributions", "--token", " ").out.splitlines()
    assert lines[0] == "direct contributions to the logit of ' '"
    assert lines[-2].split()[0] == lines[-1].split()[0]
    values = foretell("explain", trained, "The cat", "--contributions", "--token", "s", "--against", "d", "--json").json
    assert (values["text"], values["against_text"]) == ("s", "d")
    assert sum(part["value"] for part in values["parts"]) == pytest.approx(values["logit"], abs=1e-4)


def test_heads_are_numbers_for_all_or_patterns_of_one_layer(foretell, trained):
    heads = foretell("explain", trained, "The cat", "--heads", "--json").json["heads"]
    assert [head["name"] for head in heads][2] == HEAD
    assert foretell("explain", trained, "The cat", "--heads", "--layer", "1", "--json").json["heads"] == heads[2:]
    text = foretell("explain", trained, "The cat", "--heads").out
    assert all(measure.title in text for measure in MEASURES.values())


def test_ablations_are_ranked(foretell, trained):
    values = foretell("explain", trained, "The cat", "--ablate", "**.core[*]", "--with", "mean", "--json").json
    assert values["fill"] == "mean"
    assert {effect["name"] for effect in values["effects"]} == {
        f"trunk.blocks.{layer}.attention.core[{head}]" for layer in (0, 1) for head in (0, 1)
    }
    lines = foretell("explain", trained, "The cat", "--ablate", HEAD).out.splitlines()
    assert lines[-1].startswith(HEAD)


@pytest.mark.parametrize("mode", [["--lens"], ["--contributions"], ["--heads"], ["--ablate", "**.feedforward"]])
def test_every_answer_fits_eighty_columns(foretell, trained, mode):
    outcome = foretell("explain", trained, "The cat\tsat\non the mat", *mode)
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert outcome.out.endswith("\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["The", "--lens", "--heads"], 2, ["--lens and --heads exclude"]),
        (["The", "--lens", "--token", "x"], 2, ["--token goes with --contributions, --ablate"]),
        (["The", "--heads", "--at", "1"], 2, ["--at", "--lens"]),
        (["The", "--contributions", "--with", "mean"], 2, ["--with", "--ablate"]),
        (["The", "--contributions", "--token", "xy"], 2, ["'xy'", "'x', 'y'"]),
        (["The", "--contributions", "--at", "-9"], 2, ["-9", "3 tokens"]),
        (["The", "--heads", "--layer", "7"], 2, ["layer 7", "0 to 1"]),
        (["The", "--ablate", "trunk.blocks.*.feedforwrd"], 2, ["feedforwrd", "feedforward"]),
        (["The", "--ablate", "head[0]"], 2, ["head has no heads"]),
        (["The", "--ablate", "embed", "--with", "noise"], 2, ["noise"]),
        (["", "--lens"], 2, ["empty"]),
        (["x" * 33, "--heads"], 1, ["33", "32"]),
    ],
)
def test_bad_input_to_attribution_is_one_line(foretell, trained, arguments, code, words):
    outcome = foretell("explain", trained, *arguments)
    assert outcome.code == code
    assert all(word in outcome.last_line for word in words), outcome.last_line
    assert outcome.out == ""

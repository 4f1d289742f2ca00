"""`foretell explain`: the walk, one number, the page, what produced a prediction, and errors for bad input."""

from __future__ import annotations

import pytest

from foretell.insight.explain import textbook_check

WEIGHT = "trunk.blocks.0.attention.core.weights[1,3,2]"
HEAD = "trunk.blocks.1.attention.core[0]"


def test_one_number_is_shown_with_its_operands(foretell, trained):
    outcome = foretell("explain", trained, "The cat", "--value", WEIGHT).succeeds()
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
    outcome = foretell("explain", trained, "The cat", "--check").succeeds()
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


# --- the page --------------------------------------------------------------------------------------------------------


def test_a_page_is_written_and_described_in_one_line(foretell, trained, tmp_path):
    outcome = foretell("explain", trained, "The cat", "--html", "page.html").succeeds()
    size = (tmp_path / "page.html").stat().st_size
    assert outcome.out == f"page.html: 7 tokens, 2 layers, 2 heads per layer, {size / 1000:.0f} kB\n"


def test_the_report_is_also_there_as_json(foretell, trained, tmp_path):
    report = foretell("explain", trained, "The cat", "--html", "page.html", "--json").json
    size = (tmp_path / "page.html").stat().st_size
    assert report == {"path": "page.html", "bytes": size, "tokens": 7, "layers": 2, "heads": 2, "cut": []}


# --- what produced a prediction --------------------------------------------------------------------------------------


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
    assert "The most telling of 4 heads." in foretell("explain", trained, "The cat", "--heads").out


def test_ablations_are_ranked_and_show_progress(foretell, trained, monkeypatch):
    values = foretell("explain", trained, "The cat", "--ablate", "**.core[*]", "--with", "mean", "--json").json
    assert values["fill"] == "mean"
    assert {effect["name"] for effect in values["effects"]} == {
        f"trunk.blocks.{layer}.attention.core[{head}]" for layer in (0, 1) for head in (0, 1)
    }
    monkeypatch.setattr("foretell.cli.terminal.PLAIN_SECONDS", 0.0)
    monkeypatch.setattr("foretell.insight.attribution.ablation.TOKENS_AT_ONCE", 21)
    outcome = foretell("explain", trained, "The cat", "--ablate", "**.core[*]")
    assert "parts: 2 of 4 (50%)" in outcome.err
    lines = foretell("explain", trained, "The cat", "--ablate", HEAD).out.splitlines()
    assert lines[-1].startswith(HEAD)


def test_a_second_text_shows_where_the_difference_matters(foretell, trained):
    found = foretell("explain", trained, "The cat", "--patch-from", "The dog", "--token", "s", "--json").json
    assert found["token"]["text"] == "s" and found["positions"] == [4, 5, 6]
    assert [row["name"] for row in found["rows"]] == ["embed", "trunk.blocks.0", "trunk.blocks.1"]


@pytest.mark.parametrize("asked", [["--lens"], ["--heads"], ["--patch-from", "The dog"], ["--value", WEIGHT]])
def test_any_answer_is_also_written_as_a_page(foretell, trained, tmp_path, asked):
    shown = foretell("explain", trained, "The cat", *asked, "--html", "page.html").succeeds()
    assert shown.out == foretell("explain", trained, "The cat", *asked).out
    assert "<table" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert foretell("explain", trained, "The cat", *asked, "--html", "page.html").code == 0


MODES = [["--lens"], ["--contributions"], ["--heads"], ["--ablate", "**.feedforward"], ["--lens", "--with", "mean"]]


@pytest.mark.parametrize("mode", [*MODES, ["--patch-from", "The dog\tsat\non the mat"]])
def test_every_answer_fits_eighty_columns(foretell, trained, mode):
    outcome = foretell("explain", trained, "The cat\tsat\non the mat", *mode).succeeds()
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert outcome.out.endswith("\n")


# --- bad input -------------------------------------------------------------------------------------------------------


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
        (["The", "--html", "p.html", "--at", "1"], 2, ["--at", "--lens"]),
        (["", "--html", "p.html"], 2, ["empty"]),
        (["x" * 33, "--html", "p.html"], 1, ["33", "32"]),
        (["The", "--html", "nowhere/p.html"], 1, ["nowhere", "folder"]),
        (["The", "--html", "."], 1, ["folder"]),
        (["The", "--html", "/proc/p.html"], 1, ["/proc/p.html"]),
        (["The", "--lens", "--heads"], 2, ["--lens and --heads exclude"]),
        (["The", "--lens", "--token", "x"], 2, ["--token goes with --contributions, --ablate, --patch-from"]),
        (["The", "--heads", "--at", "1"], 2, ["--at", "--lens"]),
        (["The", "--contributions", "--with", "mean"], 2, ["--with", "--ablate"]),
        (["The", "--patch-from", "The"], 2, ["the same tokens"]),
        (["The", "--patch-from", ""], 2, ["empty"]),
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
def test_what_cannot_be_explained_is_one_line_and_writes_nothing(foretell, trained, tmp_path, arguments, code, words):
    foretell("explain", trained, *arguments).refuses(code, *words)
    assert list(tmp_path.iterdir()) == []


def test_an_update_of_a_run_is_shown_whole_or_one_weight_of_it(foretell, trained, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shown = foretell("explain", trained, "--step", "2").succeeds()
    for words in ("Update 2", "learning rate", "relative", "--value\n'update:", "row 0: ", "more row"):
        assert words in shown.out
    whole = foretell("explain", trained, "--step", "2", "--json").json
    assert whole["rows"][0]["tokens"][0]["loss"] is None
    weight = foretell("explain", trained, "--step", "2", "--value", whole["modules"][0]["largest"], "--json").json
    assert weight["agrees"]
    assert foretell("next", f"{trained}@step-2", "The", "--yes").succeeds().out
    assert "goes with --value and --json alone" in foretell("explain", trained, "--step", "2", "--lens").err
    assert "unknown option --yes" in foretell("next", trained, "The", "--yes").err
    (tmp_path / "saved").mkdir()
    assert "is not a run" in foretell("explain", tmp_path / "saved", "--step", "2").err

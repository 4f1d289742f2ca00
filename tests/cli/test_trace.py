"""`foretell trace`: the values of a pass, by name, in a file."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

WEIGHTS = "trunk.blocks.*.attention.core.weights"


def test_a_trace_writes_the_selected_values_under_their_names(foretell, trained, tmp_path):
    outcome = foretell("trace", trained, "The cat", "--select", WEIGHTS, "--select", "head", "--out", "x.st", "--json")
    names = ["trunk.blocks.0.attention.core.weights", "trunk.blocks.1.attention.core.weights", "head"]
    assert [value["name"] for value in outcome.json["values"]] == names
    assert outcome.json["values"][0] == {"name": names[0], "shape": [1, 2, 7, 7], "dtype": "float32", "derived": True}
    assert not outcome.json["values"][2]["derived"]
    with safe_open(tmp_path / "x.st", framework="pt") as file:
        assert sorted(file.keys()) == sorted(names)
        weights = file.get_tensor(names[0])
        metadata = file.metadata()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 7))
    assert json.loads(metadata["derived"]) == names[:2]
    assert json.loads(metadata["ids"]) == list(b"The cat")
    assert metadata["text"] == "The cat"


def test_a_trace_is_printed_as_a_table_that_fits(foretell, trained):
    outcome = foretell("trace", trained, "The cat", "--out", "x.st")
    assert "trunk.blocks.1.attention.core.weights                 1 x 2 x 7 x 7  derived" in outcome.out.splitlines()
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "values of 7 tokens are in x.st" in outcome.err


def test_the_names_can_be_listed_without_a_text(foretell, trained):
    listed = [line.split() for line in foretell("trace", trained, "--list").out.splitlines()]
    assert ["trunk.blocks.1.attention.core.weights", "derived"] in listed
    assert ["trunk.blocks.1.attention.core"] in listed
    found = foretell("trace", trained, "--list", "--json").json
    assert found["names"] == [name for name, *_ in listed]
    assert found["derived"] == [name for name, *mark in listed if mark]
    assert foretell("trace", trained, "--list", "--select", "**.gate").out.splitlines() == [
        f"trunk.blocks.{layer}.feedforward.gate" for layer in (0, 1)
    ]


def test_names_are_listed_without_reading_weights(foretell, trained, monkeypatch):
    listed = foretell("trace", trained, "--list", "--device", "cpu").out
    monkeypatch.setattr("foretell.cli.trace.open_model", lambda *_, **__: pytest.fail("the weights are read"))
    assert foretell("trace", trained, "--list").out == listed


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["The"], 2, ["--out"]),
        (["The", "--out", "x.npz"], 2, ["values are written as safetensors; name it x.safetensors"]),
        (["--out", "x.st"], 2, ["TEXT"]),
        (["The", "--select", "**.wieghts", "--out", "x.st"], 2, ["**.wieghts", "**.weights"]),
        (["--list", "--select", "haed"], 2, ["haed", "head"]),
        (["--list", "--out", "x.st"], 2, ["--list alone"]),
        (["The", "--list"], 2, ["--list alone"]),
        (["", "--out", "x.st"], 2, ["empty"]),
        (["x" * 33, "--out", "x.st"], 1, ["33", "32"]),
        (["The", "--out", "nowhere/x.st"], 1, ["nowhere/x.st", "folder"]),
        (["The", "--out", "."], 1, ["folder"]),
    ],
)
def test_bad_input_to_trace_is_one_line_and_writes_nothing(foretell, trained, tmp_path, arguments, code, words):
    foretell("trace", trained, *arguments).refuses(code, *words)
    assert list(tmp_path.iterdir()) == []

"""Files written by format 1 (foretell 0.1.0) keep loading: a run, a saved model and a token store.

The files in tests/frozen/format1 are never written again; a change that cannot read them is a change of format.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from foretell import load
from foretell.cli.main import run

FROZEN = Path(__file__).parents[1] / "frozen" / "format1"


@pytest.fixture
def frozen(tmp_path, monkeypatch) -> Path:
    """A copy of the frozen files, in the current folder."""
    shutil.copytree(FROZEN, tmp_path / "frozen")
    monkeypatch.chdir(tmp_path / "frozen")
    return tmp_path / "frozen"


def test_a_saved_model_generates_what_it_generated(frozen, capfd):
    options = ["--max-tokens", "9", "--seed", "2", "--temperature", "1", "--top-p", "1", "--json"]
    assert run(["generate", "model", "The cat", *options]) == 0
    assert json.loads(capfd.readouterr().out) == json.loads((frozen / "generate.json").read_text())


def test_a_saved_model_predicts_what_it_predicted(frozen, capfd):
    assert run(["next", "model", "The cat", "--json"]) == 0
    result, expected = json.loads(capfd.readouterr().out), json.loads((frozen / "next.json").read_text())
    assert [token["id"] for token in result["tokens"]] == [token["id"] for token in expected["tokens"]]
    for token, before in zip(result["tokens"], expected["tokens"], strict=True):
        assert token["logprob"] == pytest.approx(before["logprob"], rel=1e-5)


def test_a_run_is_listed_and_its_checkpoint_loads(frozen, capfd):
    assert run(["runs", "run", "--json"]) == 0
    assert '"step": 4' in capfd.readouterr().out
    weights = load_file(frozen / "run" / "checkpoints" / "step-000004" / "model.safetensors")
    loaded = load("run@step-000004", "cpu").decoder.state_dict()
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[path], weights[path]) for path in weights)


def test_an_unfinished_run_is_not_resumed_and_its_checkpoint_starts_a_new_one(frozen, capfd):
    assert run(["train", "--out", "run", "--resume", "auto"]) == 1
    assert "its checkpoints are models, and a new training can start from one" in capfd.readouterr().err
    (frozen / "t.txt").write_text("the cat sat on the mat " * 50)
    assert run(["train", "t.txt", "--start-from", "run", "--steps", "1", "--out", "new"]) == 0, capfd.readouterr().err


def test_a_token_store_trains_a_new_run(frozen, capfd):
    shape = ["--size", "toy", "--set", "model.context_length=16", "--set", "model.width=16"]
    assert run(["train", "tokens", "--steps", "2", "--out", "new", *shape]) == 0, capfd.readouterr().err


def test_a_flipped_byte_in_a_frozen_checkpoint_is_found(frozen, capfd):
    weights = frozen / "run" / "checkpoints" / "step-000004" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert run(["next", "run", "The cat", "--verify"]) == 1
    assert "model.safetensors" in capfd.readouterr().err

"""Finding a model or a tokenizer by its argument needs no torch, so verbs that read text alone start fast."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foretell.errors import CheckpointError
from foretell.finding import find_model, find_tokenizer
from foretell.text import train_tokenizer


def test_a_tokenizer_is_found_without_torch():
    code = "import sys\nfrom foretell.cli.main import run\nassert run(['tokenize', 'primer', 'a']) == 0\n"
    check = "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code + check], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_an_unknown_name_is_answered_with_the_models_in_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, file in (("trained", "run.json"), ("sorter", "config.json"), ("notes", "notes.txt")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / file).write_text("{}")
    with pytest.raises(
        CheckpointError,
        match="no model '': no such path.*; there is 'primer', 'atlas', 'almanac', 'sorter', 'trained'$",
    ):
        find_model("")
    with pytest.raises(CheckpointError, match="did you mean 'sorter'"):
        find_model("sortr")


def test_a_run_whose_name_is_not_utf8_is_listed_readably(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "bad\udcff").mkdir(parents=True)
    (tmp_path / "runs" / "bad\udcff" / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match="there is 'primer', 'atlas', 'almanac', 'bad\ufffd'$"):
        find_model("")


def test_a_folder_of_data_does_not_hide_the_tokenizer_of_the_run_with_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("names", "runs/names"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "runs/names/run.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        find_tokenizer("names")
    train_tokenizer("bytes", ["a"]).save(tmp_path / "names" / "tokenizer.json")
    assert find_tokenizer("names").kind == "bytes"


def test_a_tokenizer_in_the_place_of_a_model_is_named_with_what_makes_a_model(tmp_path):
    train_tokenizer("bytes", ["a"]).save(tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"is a tokenizer alone; a model with it: .* --tokenizer"):
        find_model(str(tmp_path))

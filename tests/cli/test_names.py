"""File names that are not UTF-8 work from the text to the export."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from foretell.cli.main import run
from foretell.storage.files import printable_name, read_json, write_json

NAME = os.fsdecode(b"caf\xe9")
QUICK = ["--size", "toy", "--model.width", "16", "--model.context-length", "32", "--kind", "bytes", "--steps", "2"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")


def test_names_that_are_not_utf8_work_from_training_to_export(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{NAME}.txt").write_text("Once upon a time there was a cat. " * 99)
    model = f"runs/{NAME}"
    for arguments in (
        ["train", f"{NAME}.txt", *QUICK, "--training.batch-size", "4"],
        ["train", "--out", model, "--resume", "auto"],
        ["next", model, "a"],
        ["evaluate", model, f"{NAME}.txt"],
        ["explain", model, "On", "--html", f"{NAME}.html"],
        ["convert", model, f"{NAME}-hf", "--to", "huggingface"],
        ["next", f"{NAME}-hf", "a"],
        ["runs"],
    ):
        assert run(arguments) == 0, (arguments, capfd.readouterr().err)


def test_json_keeps_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"data": [NAME, "größer", "🙂"]})
    assert (tmp_path / "x.json").read_bytes().decode("utf-8")
    assert read_json(tmp_path / "x.json") == {"data": [NAME, "größer", "🙂"]}
    assert printable_name(NAME) == "caf\ufffd"

"""A MODEL argument that is a single file is answered with what the file is and what to name instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell.errors import CheckpointError
from foretell.loading import load


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.gguf", "x.gguf is a GGUF file, which foretell writes and does not read; name the model that it was made"),
        ("x.pth", "x.pth is a pickle, which can run any code when it is opened; name a folder with model.safetensors"),
        ("x.pt", "x.pt is a pickle"),
        ("pytorch_model.bin", "pytorch_model.bin is a pickle"),
        ("model.safetensors", "is weights alone; name a folder that has config.json and tokenizer.json next to them"),
        ("notes.txt", "is a file; a model is a folder, the name of a run, or hub:owner/name"),
    ],
)
def test_a_file_is_named_for_what_it_is(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / name)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_file_of_a_model_leads_to_its_folder(name: str, tmp_path: Path) -> None:
    for file in ("config.json", name):
        (tmp_path / file).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=f"{name} is one file of a model; name its folder, {tmp_path}$"):
        load(tmp_path / name)

"""A MODEL argument that is a single file is answered with what the file is and what to name instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.errors import CheckpointError
from foretell.language_model import LanguageModel
from foretell.loading import absurd_weights, load
from foretell.model.init import make_decoder
from foretell.saved_model.parts_on_disk import save_model
from foretell.text import train_tokenizer


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.gguf", "x.gguf is not a GGUF file: it does not begin with GGUF; get it again"),
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


@pytest.mark.parametrize(("value", "is_absurd"), [(3e38, True), (-1e30, True), (100.0, False)])
def test_absurd_weights_are_a_note_though_they_are_finite(value: float, is_absurd: bool, tmp_path: Path) -> None:
    tokenizer = train_tokenizer("characters", ["abc"])
    sizes = {"num_layers": 1, "num_heads": 1, "width": 32, "context_length": 8, "vocab_size": tokenizer.vocab_size}
    decoder = make_decoder(make_section(ModelConfig, sizes), seed=1)
    with torch.no_grad():
        next(iter(decoder.parameters())).fill_(value)
    save_model(tmp_path, decoder, tokenizer)
    notes = [note for note in load(tmp_path).notes if "the weights are absurd" in note]
    assert len(notes) == is_absurd


def test_absurd_scales_of_quantized_weights_are_a_note() -> None:
    tokenizer = train_tokenizer("characters", ["abc"])
    sizes = {"num_layers": 1, "num_heads": 1, "width": 32, "context_length": 8, "vocab_size": tokenizer.vocab_size}
    model = LanguageModel(make_decoder(make_section(ModelConfig, sizes), seed=1), tokenizer).quantize("int8")
    assert absurd_weights(model) == []
    path, scales = next((path, each) for path, each in model.decoder.named_buffers() if each.is_floating_point())
    scales.fill_(-1e30)
    assert path in absurd_weights(model)[0]

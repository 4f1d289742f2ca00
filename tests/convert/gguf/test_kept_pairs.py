"""The pairs of a GGUF file that foretell does not compute leave with the model again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.convert.gguf.export import describe_file, export_gguf, pack_weights
from foretell.convert.gguf.header import GENERAL_BYTES, read_header
from foretell.convert.gguf.kept_pairs import pairs_of
from foretell.convert.gguf.metadata import choose_architecture
from foretell.convert.gguf.write import write_gguf
from foretell.errors import CheckpointError
from foretell.language_model import LanguageModel
from foretell.session.protocol import load_start
from foretell.storage.files import CONFIG
from foretell.text import Tokenizer, train_tokenizer
from tests.convert.gguf.conftest import TEXT

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|pad|>")
FOREIGN: dict[str, Any] = {
    "general.name": "Fox 1",
    "general.author": "Zoë\nand others",
    "general.license": "apache-2.0",
    "general.repo_url": "https://example.org/fox",
    "general.languages": ["en", "el"],
    "general.tags": ["text-generation"],
    "general.base_model.count": 1,
    "general.sampling.temp": 0.6000000238418579,
    "tokenizer.ggml.pre": "deepseek-r1-qwen",
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.add_sep_token": False,
    "tokenizer.ggml.add_eos_token": True,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer("bpe", [TEXT], vocab_size=320, split="qwen2", special=SPECIAL)


def special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    start, end, padding = (tokenizer.special_tokens[name] for name in SPECIAL)
    ids = {"bos": start, "eos": end, "padding": padding, "unknown": padding, "fim_pre": 7}
    return {f"tokenizer.ggml.{name}_token_id": value for name, value in ids.items()}


@pytest.fixture
def file(make_model, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A file with pairs that foretell does not compute."""
    return write(make_model("qwen2", tokenizer), tmp_path / "fox.gguf", special_ids(tokenizer))


def write(model: LanguageModel, path: Path, pairs: dict[str, Any]) -> Path:
    family = choose_architecture(model.config)
    known = describe_file(model, family, "f32") | FOREIGN | {"general.quantization_version": 2} | pairs
    write_gguf(path, family.name, known, pack_weights(model.decoder, family, "f32"))
    return path


def described(path: Path) -> dict[str, Any]:
    """The pairs of a file with the types of their values, without what an export computes from its own tensors."""
    computed = ("general.quantization_version", "general.file_type")
    pairs = {key: (type(value), value) for key, value in read_header(path).pairs.items()}
    return {key: pair for key, pair in pairs.items() if key not in computed}


def test_all_pairs_leave_again(file: Path, tmp_path: Path) -> None:
    model = foretell.load(file, "cpu", "float32")
    export_gguf(model, tmp_path / "again.gguf")
    assert described(tmp_path / "again.gguf") == described(file)
    assert "general.quantization_version" not in read_header(tmp_path / "again.gguf").pairs
    export_gguf(model, tmp_path / "half.gguf", "f16")
    assert read_header(tmp_path / "half.gguf").pairs["general.file_type"] == 1


def test_a_saved_model_and_its_int8_form_keep_the_pairs(file: Path, tmp_path: Path) -> None:
    model = foretell.load(file, "cpu", "float32")
    model.save(tmp_path / "saved")
    export_gguf(foretell.load(tmp_path / "saved", "cpu", "float32"), tmp_path / "again.gguf")
    assert described(tmp_path / "again.gguf") == described(file)
    assert pairs_of(model.quantize("int8")) == pairs_of(model)


def test_other_start_and_end_tokens_replace_those_of_the_file(file: Path, tmp_path: Path) -> None:
    changed = foretell.load(file, "cpu", "float32").with_start("<|pad|>")
    export_gguf(changed, tmp_path / "again.gguf")
    pairs = read_header(tmp_path / "again.gguf").pairs
    _, end, padding = (changed.tokenizer.special_tokens[name] for name in SPECIAL)
    assert pairs["tokenizer.ggml.bos_token_id"] == padding and pairs["tokenizer.ggml.add_bos_token"] is True
    assert pairs["tokenizer.ggml.eos_token_id"] == end and pairs["tokenizer.ggml.padding_token_id"] == padding
    assert foretell.load(tmp_path / "again.gguf").tokenizer.start_ids == changed.tokenizer.start_ids


def test_a_training_starts_without_the_pairs_of_its_model(file: Path) -> None:
    assert pairs_of(foretell.load(file, "cpu", "float32"))
    assert not pairs_of(load_start(file).model)


def test_pairs_that_cannot_leave_are_noted(make_model, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model, words = make_model("qwen2", tokenizer), "an export will not have {} of its pairs, such as {}"
    path = write(model, tmp_path / "numbers.gguf", {"general.numbers": [1, 2]})
    loaded = foretell.load(path, "cpu", "float32")
    assert loaded.notes[-1].endswith(words.format(1, "general.numbers"))
    assert pairs_of(loaded)["general.license"] == "apache-2.0"
    path = write(model, tmp_path / "long.gguf", {"general.description": "a" * GENERAL_BYTES})
    loaded = foretell.load(path, "cpu", "float32")
    assert "an export will not have" in loaded.notes[-1] and not pairs_of(loaded)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", "gpt2"),
        ("general.file_type", 2),
        ("llama.block_count", 2),
        ("tokenizer.ggml.tokens", ["a"]),
        ("general.name", None),
        ("general.name", ["a", 1]),
        ("general.name", {"a": "b"}),
        ("general.name", "\ud800"),
        ("general.\ud800", "a"),
        ("general.tags", []),
        ("general.count", -1),
        ("general.count", 2**32),
        ("general.share", 1e300),
        ("general.share", 0.1),
        ("general.name", "a" * GENERAL_BYTES),
    ],
    ids=str,
)
def test_damaged_pairs_of_a_saved_model_are_refused(file: Path, tmp_path: Path, key: str, value: Any) -> None:
    foretell.load(file, "cpu", "float32").save(tmp_path / "saved")
    path = tmp_path / "saved" / CONFIG
    config = json.loads(path.read_text())
    config["parts"]["gguf_pairs"][key] = value
    path.write_text(json.dumps(config))
    (tmp_path / "saved" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="'gguf_pairs' has pairs that no GGUF file could have"):
        foretell.load(tmp_path / "saved", "cpu", "float32")

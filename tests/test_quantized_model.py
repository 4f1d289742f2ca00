"""Quantised models on disk and on the fly: the same bits, and damage that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import foretell
from foretell import LanguageModel
from foretell.config.model import ModelConfig
from foretell.config.quantization import Scheme
from foretell.config.section import make_section
from foretell.convert.export import export_huggingface
from foretell.convert.gguf.export import export_gguf
from foretell.errors import CheckpointError, UsageError
from foretell.model.init import make_decoder
from foretell.saved_model.part import stored_buffers
from foretell.saved_model.parts_on_disk import save_model
from foretell.session.protocol import load_start
from foretell.text import train_tokenizer

SIZES = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 32}
LLAMA = {**SIZES, "position": "rotary", "norm": "rmsnorm", "feedforward": "gated", "activation": "silu", "bias": False}
SHAPES = {"gpt2": SIZES, "llama": {**LLAMA, "tie_embeddings": False}}
SCHEMES: tuple[Scheme, ...] = ("int8", "int4")
TEXT = "to be or not to be"


@pytest.fixture(params=list(SHAPES))
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A saved model with floating-point weights."""
    tokenizer = train_tokenizer("bytes", [TEXT])
    config = make_section(ModelConfig, {**SHAPES[request.param], "vocab_size": tokenizer.vocab_size})
    directory = tmp_path / "plain"
    directory.mkdir()
    save_model(directory, make_decoder(config, seed=1), tokenizer)
    return directory


@pytest.fixture(params=SCHEMES)
def saved(request: pytest.FixtureRequest, plain: Path) -> Path:
    """A saved quantised model."""
    directory = plain.with_name("quantised")
    foretell.load(plain).quantize(request.param, keep=("**.blocks.1.attention.key",)).save(directory)
    return directory


def logits(model: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return model([model.encode(TEXT)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loaded_and_in_memory_are_the_same_bits(plain: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    for to in SCHEMES:
        model = foretell.load(plain).quantize(to)
        model.save(tmp_path / to)
        loaded, on_the_fly = foretell.load(tmp_path / to, dtype=dtype), foretell.load(plain, dtype=dtype, quantize=to)
        assert loaded.quantization == on_the_fly.quantization == model.quantization
        expected = stored_buffers(model.decoder)
        for other in (loaded, on_the_fly):
            assert other.dtype == dtype
            buffers = stored_buffers(other.decoder)
            assert buffers.keys() == expected.keys()
            assert all(torch.equal(buffers[path], expected[path]) for path in expected)
        assert torch.equal(logits(loaded), logits(on_the_fly))
        assert torch.equal(logits(model.to(dtype=dtype)), logits(loaded))


def test_quantising_makes_a_new_model_and_leaves_the_old_one(plain: Path) -> None:
    model = foretell.load(plain)
    before = logits(model)
    quantized = model.quantize("int4")
    assert quantized.quantization is not None
    assert model.quantization is None
    assert not torch.equal(logits(quantized), before)
    assert torch.equal(logits(model), before)
    assert stored_buffers(model.decoder) == {}


def test_keys_are_paths_and_no_float_weight_is_stored(saved: Path) -> None:
    keys = load_file(saved / "model.safetensors")
    assert keys["trunk.blocks.0.attention.query.integers"].dtype in (torch.int8, torch.uint8)
    assert keys["trunk.blocks.0.attention.query.scales"].dtype == torch.bfloat16
    assert "trunk.blocks.0.attention.query.weight" not in keys
    assert "trunk.blocks.1.attention.key.weight" in keys  # kept
    scheme = json.loads((saved / "config.json").read_text(encoding="utf-8"))["parts"]["quantization"]
    assert scheme["keep"] == ["**.blocks.1.attention.key"] and scheme["calibrated"] is False


def test_saved_again_it_is_the_same_file(saved: Path, tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        foretell.load(saved, dtype=dtype).save(tmp_path / dtype, dtype="float32")
        again, first = (load_file(path / "model.safetensors") for path in (tmp_path / dtype, saved))
        assert all(torch.equal(again[key], first[key]) for key in first if not key.endswith(("weight", "bias")))


def test_the_settings_are_part_of_what_is_printed(saved: Path) -> None:
    assert foretell.load(saved).quantization is not None
    assert "int" in repr(foretell.load(saved))


def rename(values: dict[str, torch.Tensor]) -> None:
    values["trunk.blocks.0.attention.query.scale"] = values.pop("trunk.blocks.0.attention.query.scales")


def cut(values: dict[str, torch.Tensor]) -> None:
    values["embed.token.scales"] = values["embed.token.scales"][:, :0].contiguous()


def as_floats(values: dict[str, torch.Tensor]) -> None:
    values["embed.token.integers"] = values["embed.token.integers"].float()


def not_finite(values: dict[str, torch.Tensor]) -> None:
    values["trunk.blocks.0.attention.query.scales"][0] = torch.nan


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rename, "has no weight 'trunk.blocks.0.attention.query.scales'"),
        (cut, "'embed.token.scales' has shape"),
        (as_floats, "'embed.token.integers' holds F32, and I8 is expected"),
        (not_finite, "'trunk.blocks.0.attention.query.scales' has values that are not finite"),
    ],
)
def test_damaged_weights_are_named(
    saved: Path, damage: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    values = load_file(saved / "model.safetensors")
    damage(values)
    save_file(values, saved / "model.safetensors")
    (saved / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=message):
        foretell.load(saved)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": 8}, "has shape"),
        ({"group": 5}, "groups of 5"),
        ({"group": 0}, "group"),
        ({"to": "int3"}, "int3"),
        ({"keep": ["nothing"]}, "nothing"),
        ({"bits": 4}, "bits"),
    ],
)
def test_wrong_settings_are_one_line(saved: Path, settings: dict[str, object], message: str) -> None:
    config = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    config["parts"]["quantization"] |= settings
    (saved / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (saved / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=message) as raised:
        foretell.load(saved)
    assert "\n" not in str(raised.value)


def test_a_quantised_model_is_neither_trained_nor_converted_nor_quantised_again(saved: Path, tmp_path: Path) -> None:
    model = foretell.load(saved)
    with pytest.raises(UsageError, match="train the model that it was made from"):
        load_start(saved)
    for export in (export_huggingface, export_gguf):
        with pytest.raises(UsageError, match="convert the model that it was made from"):
            export(model, tmp_path / "export")
    with pytest.raises(UsageError, match="quantize the model that it was made from"):
        model.quantize("int8")
    with pytest.raises(UsageError, match="quantize the model that it was made from"):
        foretell.load(saved, quantize="int8")


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown scheme 'int3', did you mean 'int"):
        foretell.load("primer").quantize("int3")  # pyrefly: ignore

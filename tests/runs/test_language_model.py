"""A saved model loads bit-identical; anything else is refused in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from foretell.errors import ForetellError, OutputError
from foretell.language_model import LanguageModel, load_model
from foretell.model.decoder import Decoder
from foretell.model.dropout import Dropout
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.saved_model.parts_on_disk import save_model
from foretell.storage import safetensors_files
from foretell.text import Tokenizer

IDS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture
def saved(tmp_path: Path, decoder: Decoder, tokenizer: Tokenizer) -> Path:
    save_model(tmp_path, decoder, tokenizer)
    return tmp_path


def test_a_saved_model_loads_bit_identical(saved: Path, decoder: Decoder, tokenizer: Tokenizer) -> None:
    model = load_model(saved, name="x")
    assert torch.equal(model.decoder(IDS), decoder.eval()(IDS))
    assert model.tokenizer.fingerprint == tokenizer.fingerprint
    assert (model.name, model.device, model.dtype) == ("x", torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("size", ["toy", "gpt2"])
def test_every_weight_is_under_its_module_path(size: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    shape = {"num_layers": 2, "num_heads": 2, "width": 8, "context_length": 6, "vocab_size": tokenizer.vocab_size}
    decoder = make_decoder(preset_config(size, **shape, head_width=4), seed=1)
    save_model(tmp_path, decoder, tokenizer)
    weights = load_file(tmp_path / "model.safetensors")
    assert weights.keys() == dict(decoder.named_parameters()).keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert load_model(tmp_path).decoder.config == decoder.config


def test_saving_a_loaded_model_writes_the_same_bytes(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    again, model = tmp_path_factory.mktemp("again"), load_model(saved, for_training=True)
    save_model(again, model.decoder, model.tokenizer)
    for path in saved.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


def test_weights_can_be_saved_and_loaded_in_bfloat16(tmp_path: Path, decoder: Decoder, tokenizer: Tokenizer) -> None:
    save_model(tmp_path, decoder, tokenizer, torch.bfloat16)
    loaded = load_model(tmp_path, dtype=torch.bfloat16).decoder
    assert torch.equal(loaded(IDS), decoder.eval().bfloat16()(IDS))


def test_a_model_for_use_has_no_dropout_and_one_for_training_has(saved: Path) -> None:
    use, training = load_model(saved).decoder, load_model(saved, for_training=True).decoder
    assert not use.training
    assert not any(isinstance(module, Dropout) for module in use.modules())
    assert training.training
    assert any(isinstance(module, Dropout) for module in training.modules())


def test_a_full_disk_is_one_line(
    tmp_path: Path, decoder: Decoder, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors_files, "save_file", fail)
    with pytest.raises(OutputError) as caught:
        LanguageModel(decoder, tokenizer).save(tmp_path / "saved")
    assert str(caught.value) == f"could not write {tmp_path / 'saved'}: No space left on device"
    with pytest.raises(OSError, match=r"No space left on device: .*model.safetensors"):
        save_model(tmp_path, decoder, tokenizer)


# --- what is refused -------------------------------------------------------------------------------------------------


def config_with(**changes: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        values = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))

    return spoil


def weights_with(**changes: torch.Tensor | None) -> Callable[[Path], None]:
    """Weights with some added, replaced or (None) left out; `__` stands for the dots of a path."""

    def spoil(folder: Path) -> None:
        path = folder / "model.safetensors"
        weights = load_file(path) | {name.replace("__", "."): value for name, value in changes.items()}
        save_file({name: value for name, value in weights.items() if value is not None}, path)

    return spoil


def file_with(name: str, content: bytes | None) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)

    return spoil


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


HEADER_BOMB = (2**60).to_bytes(8, "little") + b"{}"

REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "another program's": (config_with(model_type="gpt2"), "config.json has model_type 'gpt2', format 1"),
    "no model type": (config_with(model_type=...), "config.json has model_type None"),
    "another format": (config_with(format=3), "format 3; this version reads 'foretell', formats 1 and 2"),
    "unknown key": (config_with(num_layerz=3), "config.json: unknown key 'num_layerz', did you mean 'num_layers'"),
    "missing key": (config_with(width=...), "config.json: missing key 'width'"),
    "contradiction": (config_with(num_kv_heads=3), "config.json: num_heads 2 is not a multiple of num_kv_heads 3"),
    "too many layers": (config_with(num_layers=10_000), "has 20 weights, too few for the configuration's 10000 layers"),
    "absurdly many layers": (
        config_with(num_layers=10**9),
        "config.json: num_layers = 1000000000: input should be less",
    ),
    "absurd width": (config_with(vocab_size=10**18), "config.json: vocab_size = 1000000000000000000: input should be"),
    "infinite width": (config_with(width=math.inf), "config.json: width = inf: input should be"),
    "no config": (file_with("config.json", None), "config.json is missing"),
    "broken config": (file_with("config.json", b"{"), "config.json is not readable JSON"),
    "no weights": (file_with("model.safetensors", None), "model.safetensors is missing"),
    "empty weights": (
        file_with("model.safetensors", b""),
        "model.safetensors is damaged, cut short or not a safetensors file",
    ),
    "text as weights": (
        file_with("model.safetensors", b"hello" * 9),
        "is damaged, cut short or not a safetensors file",
    ),
    "header bomb": (file_with("model.safetensors", HEADER_BOMB), "is damaged, cut short or not a safetensors file"),
    "pickle": (file_with("model.safetensors", b"\x80\x02}q\x00."), "is damaged, cut short or not a safetensors file"),
    "cut weights": (cut_weights, "is damaged, cut short or not a safetensors file"),
    "missing weight": (weights_with(trunk__norm__bias=None), "has no weight 'trunk.norm.bias'"),
    "misshaped weight": (
        weights_with(trunk__norm__bias=torch.zeros(3)),
        r"'trunk.norm.bias' has shape \(3,\), the configuration asks for \(8,\)",
    ),
    "weights of a wider model": (config_with(width=16, head_width=8), "'embed.token.weight' has shape"),
    "extra weight": (
        weights_with(trunk__norm__biass=torch.zeros(3)),
        "has a weight 'trunk.norm.biass' that the model does not, did you mean 'trunk.norm.bias'",
    ),
    "a head where it is tied": (weights_with(head__weight=torch.zeros(8, 8)), "has a weight 'head.weight'"),
    "tokenizer of another model": (config_with(vocab_size=3), "the tokenizer has 8 tokens and the model 3"),
    "no tokenizer": (file_with("tokenizer.json", None), "tokenizer.json"),
    "broken tokenizer": (file_with("tokenizer.json", b"{}"), "tokenizer.json"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_anything_but_a_saved_model_is_refused_in_one_line(kind: str, saved: Path) -> None:
    spoil, message = REFUSED[kind]
    spoil(saved)
    with pytest.raises(ForetellError, match=message) as raised:
        load_model(saved)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 1

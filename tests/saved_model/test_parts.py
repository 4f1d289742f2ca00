"""Saved models with parts of any kind: round trips, and damage that is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.errors import CheckpointError, UsageError
from foretell.model.decoder import Decoder
from foretell.model.dispatch import Use, choose_kernels
from foretell.model.init import make_decoder
from foretell.model.surgery import replace
from foretell.model.transformer import Transformer
from foretell.saved_model import part
from foretell.saved_model.config_file import OUTSIDE_DECODER
from foretell.saved_model.part import (
    KIND_MODULES,
    KINDS,
    DecoderPart,
    Part,
    PartSource,
    TokenizerPart,
    part_class,
    register_part,
)
from foretell.saved_model.parts_on_disk import load_parts, save_parts
from foretell.text import train_tokenizer

SIZES = {"num_layers": 2, "num_heads": 2, "width": 8, "context_length": 12}


@dataclass(frozen=True)
class LabelHead(Part):
    """A linear layer on the decoder's last hidden state."""

    kind: ClassVar[str] = "test label head"
    labels: tuple[str, ...]
    linear: nn.Linear

    def config(self) -> dict[str, Any]:
        return {"labels": list(self.labels)}

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self.linear.named_parameters())

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> LabelHead:
        decoder = source.parts["decoder"]
        assert isinstance(decoder, DecoderPart)
        linear = nn.Linear(decoder.decoder.config.width, len(values["labels"]))
        shapes = {path: tuple(weight.shape) for path, weight in linear.named_parameters()}
        linear.load_state_dict(source.read(shapes))
        return cls(tuple(values["labels"]), linear)


@dataclass(frozen=True)
class BinCodec(Part):
    """A codec of numbers as bins: settings and a file, but no weights."""

    kind: ClassVar[str] = "test bins"
    file_names: ClassVar[tuple[str, ...]] = ("bins.json",)
    edges: tuple[float, ...]

    def config(self) -> dict[str, Any]:
        return {"count": len(self.edges)}

    def save_files(self, directory: Path) -> None:
        (directory / "bins.json").write_text(json.dumps(self.edges), encoding="utf-8")

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> BinCodec:
        edges = json.loads((source.directory / "bins.json").read_text(encoding="utf-8"))
        if len(edges) != values["count"]:
            raise CheckpointError(f"{source.directory / 'bins.json'} has {len(edges)} edges, not {values['count']}")
        return cls(tuple(edges))


@dataclass(frozen=True)
class TwoTrunks(Part):
    """One part with an encoder trunk and a decoder trunk."""

    kind: ClassVar[str] = "test two trunks"
    settings: ModelConfig
    trunks: nn.ModuleDict

    def config(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json")

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self.trunks.named_parameters())

    @classmethod
    def make(cls, settings: ModelConfig) -> TwoTrunks:
        return cls(settings, nn.ModuleDict({"encoder": Transformer(settings), "decoder": Transformer(settings)}))

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> TwoTrunks:
        part = cls.make(ModelConfig.model_validate(values))
        part.trunks.load_state_dict(source.read({path: tuple(weight.shape) for path, weight in part.weights().items()}))
        return part


class ScaledLinear(nn.Linear):
    """A linear layer whose output is multiplied by a learned scale: a small adapter."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, plain.bias is not None)
        self.weight, self.bias = plain.weight, plain.bias
        self.scale = nn.Parameter(torch.ones(plain.out_features))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.scale


@dataclass(frozen=True)
class ScaleAdapters(Part):
    """The scales that `ScaledLinear` layers add inside a decoder."""

    kind: ClassVar[str] = "test scales"
    is_inside_decoder: ClassVar[bool] = True
    glob: str
    decoder: Decoder

    def config(self) -> dict[str, Any]:
        return {"glob": self.glob}

    def weights(self) -> Mapping[str, Tensor]:
        return {path: weight for path, weight in self.decoder.named_parameters() if path.endswith(".scale")}

    @classmethod
    def insert(cls, glob: str, decoder: Decoder) -> ScaleAdapters:
        replace(decoder, glob, lambda layer: ScaledLinear(layer) if isinstance(layer, nn.Linear) else layer)
        return cls(glob, decoder)

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> ScaleAdapters:
        decoder = source.parts["decoder"]
        assert isinstance(decoder, DecoderPart)
        adapters = cls.insert(values["glob"], decoder.decoder)
        scales = source.read({path: tuple(weight.shape) for path, weight in adapters.weights().items()})
        decoder.decoder.load_state_dict(scales, strict=False)
        return adapters


@pytest.fixture(autouse=True)
def known_kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(part, "KINDS", dict(part.KINDS))
    for kind in (LabelHead, BinCodec, TwoTrunks, ScaleAdapters):
        register_part(kind)
    yield


@pytest.fixture
def plain() -> dict[str, Any]:
    tokenizer = train_tokenizer("bytes", ["a text"])
    config = ModelConfig.model_validate({**SIZES, "vocab_size": tokenizer.vocab_size, "dropout": 0.1})
    return {"decoder": DecoderPart(make_decoder(config, seed=1)), "tokenizer": TokenizerPart(tokenizer)}


@pytest.fixture
def tuned(plain: dict[str, Any], tmp_path: Path) -> Path:
    save_parts(tmp_path, {**plain, "label": LabelHead(("no", "yes"), nn.Linear(8, 2))})
    return tmp_path


def test_a_decoder_with_a_tokenizer_is_format_1(plain, tmp_path):
    save_parts(tmp_path, plain)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["format"] == 1
    assert config["width"] == 8
    assert "parts" not in config


def test_a_head_round_trips_with_its_weights_and_labels(plain, tmp_path):
    head = LabelHead(("no", "yes"), nn.Linear(8, 2))
    save_parts(tmp_path, {**plain, "label": head})
    parts = load_parts(tmp_path)
    assert list(parts) == ["decoder", "tokenizer", "label"]
    assert isinstance(loaded := parts["label"], LabelHead)
    assert loaded.labels == head.labels
    assert torch.equal(loaded.linear.weight, head.linear.weight)


def test_keys_are_module_paths_prefixed_by_the_part_except_the_decoders(tuned):
    keys = set(load_file(tuned / "model.safetensors"))
    assert {"embed.token.weight", "trunk.blocks.1.attention.query.weight", "label.weight", "label.bias"} <= keys


def test_the_decoder_has_dropout_only_for_training(tuned):
    for for_training in (False, True):
        part = load_parts(tuned, for_training=for_training)["decoder"]
        assert isinstance(part, DecoderPart)
        assert (part.decoder.config.dropout.residual > 0) == for_training == part.decoder.training


def test_a_codec_without_weights_and_two_trunks_round_trip(tmp_path):
    settings = ModelConfig.model_validate({**SIZES, "vocab_size": 11})
    trunks, codec = TwoTrunks.make(settings), BinCodec((0.0, 0.5, 1.0))
    save_parts(tmp_path, {"seq2seq": trunks, "codec": codec})
    parts = load_parts(tmp_path)
    assert parts["codec"] == codec
    assert isinstance(loaded := parts["seq2seq"], TwoTrunks)
    for path, weight in trunks.weights().items():
        assert torch.equal(loaded.weights()[path], weight)
    assert "seq2seq.encoder.blocks.0.attention.key.weight" in load_file(tmp_path / "model.safetensors")


def test_saving_a_loaded_model_writes_the_same_bytes(tuned, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    save_parts(again, load_parts(tuned, for_training=True))
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (again / name).read_bytes() == (tuned / name).read_bytes()


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}), encoding="utf-8")


def change_weights(directory: Path, change: dict[str, Tensor | None]) -> None:
    weights = load_file(directory / "model.safetensors") | change
    kept = {name: weight for name, weight in weights.items() if weight is not None}
    save_file(kept, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: change_config(path, parts={"x": {"kind": "test bin"}}), "unknown kind 'test bin', did you mean"),
        (lambda path: change_config(path, parts={"x": {}}), "unknown kind None; known kinds: decoder"),
        (lambda path: change_config(path, parts=[]), "names no parts"),
        (lambda path: change_config(path, parts={"x": 1}), "names no parts"),
        (lambda path: change_config(path, format=3), "format 3; this version reads 'foretell', formats 1 and 2"),
        (lambda path: change_weights(path, {"label.bias": None}), "has no weight 'label.bias'"),
        (lambda path: change_weights(path, {"label.bias": torch.zeros(3)}), "'label.bias' has shape \\(3,\\)"),
        (lambda path: change_weights(path, {"lable.bias": torch.zeros(2)}), "'lable.bias' .*did you mean 'label.bias'"),
        (lambda path: change_weights(path, {"head.weight": torch.zeros(2)}), "has a weight 'head.weight'"),
    ],
)
def test_damage_is_a_one_line_error(tuned, damage, message):
    damage(tuned)
    with pytest.raises(CheckpointError, match=message) as error:
        load_parts(tuned)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("make", [lambda _: nn.Tanh(), lambda layer: ScaledLinear(nn.Linear(8, 8))])
def test_a_module_that_nothing_describes_is_refused_when_saving(plain, tmp_path, make):
    replace(plain["decoder"].decoder, "trunk.blocks.1.attention.query", make)
    with pytest.raises(UsageError, match=r"'trunk.blocks.1.attention.query' is a \w+, which a saved model cannot"):
        save_parts(tmp_path, plain)
    assert not list(tmp_path.iterdir())


USES = [Use(torch.device("cuda"), torch.float32, 12), Use(torch.device("cpu"), torch.bfloat16, 12, is_training=True)]


@pytest.mark.parametrize("use", USES)
def test_kernels_do_not_hinder_saving(plain, tmp_path, use):
    choose_kernels(plain["decoder"].decoder, use)
    save_parts(tmp_path, plain)


def test_kinds_outside_of_the_decoder_are_listed_without_torch():
    registered = {part_class(kind, Path("here")) for kind in [*KIND_MODULES, *KINDS]}
    outside = {part.kind for part in registered if not part.is_inside_decoder and part.kind in KIND_MODULES}
    assert outside >= set(OUTSIDE_DECODER)
    assert not {part.kind for part in registered if part.is_inside_decoder} & set(OUTSIDE_DECODER)

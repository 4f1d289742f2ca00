"""The parts of a saved model: their base class and source, and the parts of a language model."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.quantization import MATRIX_TENSORS
from foretell.config.section import make_section
from foretell.config.weight_shapes import Shape
from foretell.errors import CheckpointError, ConfigError, UsageError, did_you_mean
from foretell.model.decoder import Decoder
from foretell.model.init import empty_decoder, fill_decoder
from foretell.saved_model.config_file import DECODER, TOKENIZER, check_depth, check_vocabulary
from foretell.storage.files import CONFIG, TOKENIZER_FILE
from foretell.storage.safetensors_files import ROWS_CHECKED, check_finite, read_tensor
from foretell.storage.safetensors_header import StoredTensor, check_shapes
from foretell.text import Tokenizer, load_tokenizer


class Part(ABC):
    """A piece of a saved model. `register_part` makes its kind known to `load_parts`.

    is_inside_decoder: its weights are in the decoder's module tree, put there by `surgery.replace`; `weights` then
    returns them under their module paths, and `load` repeats the surgery on the decoder in `source.parts`.
    file_names: the files that `save_files` writes.
    """

    kind: ClassVar[str]
    is_inside_decoder: ClassVar[bool] = False
    file_names: ClassVar[tuple[str, ...]] = ()

    def config(self) -> dict[str, Any]:
        """Its entry in config.json, as JSON values."""
        return {}

    def weights(self) -> Mapping[str, Tensor]:
        """Its weights by their path within the part."""
        return {}

    def save_files(self, directory: Path) -> None:
        """Write its files besides weights and configuration."""
        assert not self.file_names

    def prepare(self, decoder: Decoder) -> None:  # noqa: B027 - most parts change nothing
        """Give an empty decoder the layers whose weights are stored with this part."""

    def merge(self) -> bool:
        """Merge changes into the decoder's weights; True if nothing is left of the part."""
        return False

    @classmethod
    @abstractmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        """The part from the values of `config`. Raises `ConfigError` or `CheckpointError` for wrong values."""


KINDS: dict[str, type[Part]] = {}
# kind -> the module that registers it, imported when a model has such a part
KIND_MODULES: dict[str, str] = {
    "decoding": "foretell.translation.translator",
    "encoder_decoder": "foretell.translation.translator",
    "gguf_pairs": "foretell.convert.gguf.kept_pairs",
    "lora": "foretell.saved_model.layer_parts",
    "quantization": "foretell.saved_model.layer_parts",
    "series_codec": "foretell.forecasting.codec",
    "source_tokenizer": "foretell.translation.translator",
    "task_head": "foretell.finetuning.head",
}


def register_part(part: type[Part]) -> type[Part]:
    """Class decorator: makes a kind of part loadable."""
    assert KINDS.setdefault(part.kind, part) is part, f"two parts are of the kind '{part.kind}'"
    return part


def part_class(kind: Any, directory: Path) -> type[Part]:
    """The class of a kind of part; an unknown kind is a `CheckpointError`."""
    if isinstance(kind, str) and kind not in KINDS and kind in KIND_MODULES:
        try:
            importlib.import_module(KIND_MODULES[kind])
        except ModuleNotFoundError as error:  # its package was removed
            raise CheckpointError(f"{directory} has a part of the kind '{kind}', which needs {error.name}") from None
    if not isinstance(kind, str) or kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS) or f"; known kinds: {', '.join(sorted(KINDS))}"
        raise CheckpointError(f"{directory / CONFIG} has a part of the unknown kind {kind!r}{hint}")
    return KINDS[kind]


@dataclass
class StoredWeights:
    """The tensors of a safetensors file. Each must belong to a part."""

    path: Path
    tensors: Mapping[str, StoredTensor]
    taken: set[str] = field(default_factory=set)

    def check_all_taken(self) -> None:
        for name in self.tensors:
            if name not in self.taken:
                hint = did_you_mean(name, self.taken)
                raise CheckpointError(f"{self.path} has a weight '{name}' that the model does not{hint}")


@dataclass(frozen=True)
class PartSource:
    """The source of a part: its name and directory, the file of weights, and the parts loaded before it."""

    directory: Path
    name: str
    part: type[Part]
    stored: StoredWeights
    parts: Mapping[str, Part]
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32
    for_training: bool = False

    def read(
        self, expected: Mapping[str, Shape], own_dtypes: Mapping[str, torch.dtype] | None = None
    ) -> dict[str, Tensor]:
        """The part's weights by path. own_dtypes: the dtypes of weights that do not have the model's.

        Raises `CheckpointError` for a weight that is missing, has another shape or dtype, or is not finite.
        """
        dtypes, tensors = own_dtypes or {}, self.stored.tensors
        keys = {path: weight_key(self.part, self.name, path) for path in expected}
        check_shapes(tensors, {keys[path]: shape for path, shape in expected.items()}, self.stored.path)
        self.stored.taken.update(keys.values())
        weights = {
            path: read_tensor(tensors[key], dtypes.get(path, self.dtype)).to(self.device) for path, key in keys.items()
        }
        rows = None if self.for_training else ROWS_CHECKED
        check_finite({keys[path]: weight for path, weight in weights.items()}, self.stored.path, rows=rows)
        return weights


def weight_key(part: type[Part], name: str, path: str) -> str:
    """The key on disk of a weight of the part called `name`."""
    return path if part.is_inside_decoder else f"{name}.{path}"


@register_part
@dataclass(frozen=True)
class TokenizerPart(Part):
    """A text tokenizer, in the one file of `file_names`."""

    kind: ClassVar[str] = TOKENIZER
    file_names: ClassVar[tuple[str, ...]] = (TOKENIZER_FILE,)
    tokenizer: Tokenizer

    def save_files(self, directory: Path) -> None:
        self.tokenizer.save(directory / self.file_names[0])

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        return cls(load_tokenizer(source.directory / cls.file_names[0]))


@register_part
@dataclass(frozen=True)
class DecoderPart(Part):
    """A decoder. Unless it is loaded for training, it has no dropout and is in evaluation mode."""

    kind: ClassVar[str] = DECODER
    is_inside_decoder: ClassVar[bool] = True
    decoder: Decoder

    def config(self) -> dict[str, Any]:
        return self.decoder.config.model_dump(mode="json")

    def weights(self) -> Mapping[str, Tensor]:
        return {**dict(self.decoder.named_parameters()), **stored_buffers(self.decoder)}

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        config = make_section(ModelConfig, values)
        check_depth(config, len(source.stored.tensors), source.stored.path)
        tokenizer = source.parts.get(TOKENIZER)
        if isinstance(tokenizer, TokenizerPart):
            check_vocabulary(tokenizer.tokenizer, config, source.directory)
        config = config if source.for_training else config.replaced(dropout=0.0)
        decoder = empty_decoder(config).to(source.dtype)
        try:
            for part in source.parts.values():
                part.prepare(decoder)
        except (ConfigError, UsageError) as error:
            raise CheckpointError(f"{source.directory / CONFIG}: {error}") from None
        tensors = decoder.state_dict()
        shapes = {path: tuple(tensor.shape) for path, tensor in tensors.items()}
        own_dtypes = {path: buffer.dtype for path, buffer in stored_buffers(decoder).items()}
        return cls(fill_decoder(decoder, source.read(shapes, own_dtypes)).train(source.for_training))


def stored_buffers(decoder: Decoder) -> dict[str, Tensor]:
    """The integers, scales, minima and units of quantised layers, as stored on disk."""
    return {path: each for path, each in decoder.named_buffers() if path.rpartition(".")[2] in MATRIX_TENSORS}


def merge_adapters(parts: Mapping[str, Part]) -> dict[str, Part]:
    """Merge LoRA updates into the decoder's weights; returns the other parts."""
    return {name: part for name, part in parts.items() if not part.merge()}

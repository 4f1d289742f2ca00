"""A saved model: `model.safetensors` under module paths, and a `config.json` that names the parts it is made of.

A part is a piece with weights, settings or files of its own: a decoder, a tokenizer, a head, adapters, a codec of
numbers. Each part's class knows its keys. A decoder with a tokenizer alone is written as format 1, whose config.json
holds the decoder's configuration directly; anything else is format 2:

    {"model_type": "foretell", "format": 2, "parts": {"decoder": {"kind": "decoder", ...}, "label": {"kind": ...}}}

In model.safetensors the keys of the decoder's weights are their module paths. Keys of other parts begin with the part's
name, except those of parts inside the decoder, such as adapters, which are module paths too.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from foretell.config import ModelConfig, make_section
from foretell.errors import CheckpointError, ConfigError, OutputError, UsageError, did_you_mean
from foretell.files import CONFIG, MODEL_TYPE, TOKENIZER_FILE, WEIGHTS, read_json, write_json
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights, empty_decoder, fill_decoder, weight_shapes
from foretell.model.kernels.dispatch import plain_form
from foretell.model.quantized_linear import QuantizationConfig, quantize_decoder, stored_buffers
from foretell.safetensors_reader import StoredTensor, check_header, open_by_library, read_header, read_tensor
from foretell.text import Tokenizer, load_tokenizer

HEADER_LIMIT = 2**23  # bytes; the optimizer's file of a model with 1,000 layers has about 5 million
FORMAT, FORMAT_WITH_PARTS = 1, 2
DECODER, TOKENIZER = "decoder", "tokenizer"  # the parts of format 1
QUANTIZATION = "quantization"
READ_FIRST = (TOKENIZER, QUANTIZATION)  # a decoder is checked against the one and made by the other
ROWS_CHECKED = 8  # of each matrix, when a model is loaded for inference

Shape = tuple[int, ...]


class Part(Protocol):
    """A piece of a saved model. `register_part` makes its kind known to `load_parts`.

    is_inside_decoder: its weights are in the decoder's module tree, put there by `surgery.replace`; `weights` then
    returns them under their module paths, and `load` repeats the surgery on the decoder in `source.parts`.
    file_names: the files that `save_files` writes.
    """

    kind: ClassVar[str]
    is_inside_decoder: ClassVar[bool]
    file_names: ClassVar[tuple[str, ...]]

    def config(self) -> dict[str, Any]:
        """What config.json says about it, as JSON values."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Its weights by their path within the part."""
        ...

    def save_files(self, directory: Path) -> None:
        """Write the files it has besides weights and configuration."""
        ...

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        """The part from what `config` returned; wrong values are a `ConfigError` or `CheckpointError`."""
        ...


KINDS: dict[str, type[Part]] = {}
# kinds of parts whose module is imported when a model has one: kind -> module
KIND_MODULES: dict[str, str] = {
    "lora": "foretell.adapters",
    "encoder_decoder": "foretell.translation.translator",
    "series_codec": "foretell.forecasting.codec",
    "source_tokenizer": "foretell.translation.translator",
    "task_head": "foretell.finetuning.head",
}


def register_part(part: type[Part]) -> type[Part]:
    """Class decorator: parts of this kind can be loaded from now on."""
    assert KINDS.setdefault(part.kind, part) is part, f"two parts are of the kind '{part.kind}'"
    return part


@dataclass
class StoredWeights:
    """The tensors of a safetensors file, each of which has to belong to a part."""

    path: Path
    tensors: Mapping[str, StoredTensor]
    taken: set[str] = field(default_factory=set)

    def check_all_taken(self) -> None:
        """Raise a `CheckpointError` for a tensor that no part has asked for."""
        for name in self.tensors:
            if name not in self.taken:
                hint = did_you_mean(name, self.taken)
                raise CheckpointError(f"{self.path} has a weight '{name}' that the model does not{hint}")


@dataclass(frozen=True)
class PartSource:
    """Where a part is loaded from: its place in a saved model, and the parts loaded before it."""

    directory: Path
    name: str
    part: type[Part]
    stored: StoredWeights
    parts: Mapping[str, Part]
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32
    for_training: bool = False

    def read(
        self, expected: Mapping[str, Shape], integers: Mapping[str, torch.dtype] | None = None
    ) -> dict[str, Tensor]:
        """The part's weights by path. integers: the dtypes of those that are not floats.

        A missing one, one of another shape or kind, or with a value that is not finite is a `CheckpointError`.
        """
        dtypes = integers or {}
        keys = {path: weight_key(self.part, self.name, path) for path in expected}
        for path, shape in expected.items():
            key = keys[path]
            if key not in self.stored.tensors:
                raise CheckpointError(f"{self.stored.path} has no weight '{key}'")
            actual = self.stored.tensors[key].shape
            if actual != shape:
                raise CheckpointError(
                    f"{self.stored.path}: '{key}' has shape {actual}, the configuration asks for {shape}"
                )
        self.stored.taken.update(keys.values())
        tensors = self.stored.tensors
        weights = {
            path: read_tensor(tensors[key], dtypes.get(path, self.dtype)).to(self.device) for path, key in keys.items()
        }
        rows = None if self.for_training else ROWS_CHECKED
        check_finite({keys[path]: weight for path, weight in weights.items()}, self.stored.path, rows=rows)
        return weights


@register_part
@dataclass(frozen=True)
class DecoderPart:
    """A decoder. Unless it is loaded for training, it comes without dropout and in evaluation mode."""

    kind: ClassVar[str] = DECODER
    is_inside_decoder: ClassVar[bool] = True
    file_names: ClassVar[tuple[str, ...]] = ()
    decoder: Decoder

    def config(self) -> dict[str, Any]:
        return self.decoder.config.model_dump(mode="json")

    def weights(self) -> Mapping[str, Tensor]:
        return {**dict(self.decoder.named_parameters()), **stored_buffers(self.decoder)}

    def save_files(self, directory: Path) -> None:
        """A decoder has no other files."""

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> DecoderPart:
        config = make_section(ModelConfig, values)
        check_depth(config, source.stored)
        tokenizer = source.parts.get(TOKENIZER)
        if isinstance(tokenizer, TokenizerPart):
            check_vocabulary(tokenizer.tokenizer, config, source.directory)
        config = config if source.for_training else config.replaced(dropout=0.0)
        shapes = weight_shapes(config)
        quantization = source.parts.get(QUANTIZATION)
        if isinstance(quantization, QuantizationPart):
            return cls(quantization.load_decoder(config, source).eval())
        decoder = decoder_with_weights(config, source.read(shapes))
        return cls(decoder.train(source.for_training))


@register_part
@dataclass(frozen=True)
class QuantizationPart:
    """How the weights of a decoder are stored as integers, which are in the decoder's module tree and its weights."""

    kind: ClassVar[str] = QUANTIZATION
    is_inside_decoder: ClassVar[bool] = True
    file_names: ClassVar[tuple[str, ...]] = ()
    settings: QuantizationConfig

    def config(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json")

    def weights(self) -> Mapping[str, Tensor]:
        return {}

    def save_files(self, directory: Path) -> None:
        """It has no files."""

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> QuantizationPart:
        if source.for_training:
            raise UsageError(f"{source.directory} is quantised; train the model that it was made from")
        return cls(make_section(QuantizationConfig, values, QUANTIZATION))

    def load_decoder(self, config: ModelConfig, source: PartSource) -> Decoder:
        """A decoder whose quantised weights are read as integers; they are never in memory as floats."""
        decoder = self.empty_decoder(config, source.directory)
        tensors = decoder.state_dict()
        shapes = {path: tuple(tensor.shape) for path, tensor in tensors.items()}
        integers = {path: tensor.dtype for path, tensor in tensors.items() if not tensor.is_floating_point()}
        return fill_decoder(decoder, source.read(shapes, integers))

    def empty_decoder(self, config: ModelConfig, directory: Path) -> Decoder:
        """A quantised decoder without weights; settings that do not fit the decoder are a `CheckpointError`."""
        decoder = empty_decoder(config)
        try:
            quantize_decoder(decoder, self.settings)
        except (ConfigError, UsageError) as error:
            raise CheckpointError(f"{directory / CONFIG}: {error}") from None
        return decoder


@register_part
@dataclass(frozen=True)
class TokenizerPart:
    """A text tokenizer, in the file tokenizer.json."""

    kind: ClassVar[str] = TOKENIZER
    is_inside_decoder: ClassVar[bool] = False
    file_names: ClassVar[tuple[str, ...]] = (TOKENIZER_FILE,)
    tokenizer: Tokenizer

    def config(self) -> dict[str, Any]:
        return {}

    def weights(self) -> Mapping[str, Tensor]:
        return {}

    def save_files(self, directory: Path) -> None:
        self.tokenizer.save(directory / TOKENIZER_FILE)

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> TokenizerPart:
        return cls(load_tokenizer(source.directory / TOKENIZER_FILE))


def save_parts(directory: Path, parts: Mapping[str, Part], dtype: torch.dtype | None = None) -> None:
    """Write a saved model into an existing directory, weights in `dtype` if one is given; integers and scales stay."""
    weights = {
        key: weight.detach().to("cpu", dtype if isinstance(weight, nn.Parameter) else None).contiguous()
        for key, weight in keyed_weights(parts).items()
    }
    save_tensors(directory / WEIGHTS, weights)
    write_json(directory / CONFIG, {"model_type": MODEL_TYPE, **describe_parts(parts)})
    for part in parts.values():
        part.save_files(directory)


def keyed_weights(parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """The weights of all parts by their keys on disk; each weight belongs to one part.

    Adapters are in the decoder's module tree: their weights are theirs, all others there the decoder's.
    """
    for part in parts.values():
        if isinstance(part, DecoderPart):
            check_described(part.decoder, parts)
    keyed: dict[str, Tensor] = {}
    inside = {
        key for part in parts.values() if part.is_inside_decoder and part.kind != DECODER for key in part.weights()
    }
    for name, part in parts.items():
        for path, weight in part.weights().items():
            if part.kind == DECODER and path in inside:
                continue
            key = weight_key(type(part), name, path)
            assert key not in keyed, f"two parts have a weight '{key}'; give the part '{name}' another name"
            keyed[key] = weight
    return keyed


def check_described(decoder: Decoder, parts: Mapping[str, Part]) -> None:
    """Refuse a decoder with a module that config.json does not describe: loading would make another model.

    Kernels are forms of the described modules. What a part inside the decoder has replaced is that part's to describe.
    """
    owned = {
        path.rpartition(".")[0]
        for part in parts.values()
        if not isinstance(part, DecoderPart)
        for path in part.weights()
    }
    empty = empty_decoder(decoder.config)
    for part in parts.values():
        if isinstance(part, QuantizationPart):
            quantize_decoder(empty, part.settings)
    described = dict(empty.named_modules())
    for path, module in decoder.named_modules():
        kind = type(described[path]) if path in described else None
        is_same = kind is not None and plain_form(type(module)) is plain_form(kind)
        if not is_same and not any(f"{path}.".startswith(f"{owner}.") for owner in owned):
            raise UsageError(
                f"'{path}' is a {type(module).__name__}, which a saved model cannot describe; save the weights of your "
                "own modules yourself, or make them a part (saved_model.py)"
            )


def describe_parts(parts: Mapping[str, Part]) -> dict[str, Any]:
    """What config.json says: format 1 for a decoder and a tokenizer, else format 2."""
    if {name: part.kind for name, part in parts.items()} == {DECODER: DECODER, TOKENIZER: TOKENIZER}:
        return {"format": FORMAT, **parts[DECODER].config()}
    return {
        "format": FORMAT_WITH_PARTS,
        "parts": {name: {"kind": part.kind, **part.config()} for name, part in parts.items()},
    }


def load_parts(
    directory: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    for_training: bool = False,
) -> dict[str, Part]:
    """Read a saved model, its parts by name in the order in which they were saved."""
    entries = read_entries(directory)
    kinds = {name: part_class(values.pop("kind", None), directory) for name, values in entries.items()}
    parts: dict[str, Part] = {}
    stored = StoredWeights(directory / WEIGHTS, read_header(directory / WEIGHTS, HEADER_LIMIT))
    # A decoder is checked against the vocabulary before its weights are read
    for name in sorted(entries, key=lambda name: kinds[name].kind not in READ_FIRST):
        source = PartSource(directory, name, kinds[name], stored, parts, device, dtype, for_training)
        try:
            parts[name] = kinds[name].load(entries[name], source)
        except ConfigError as error:
            raise CheckpointError(f"{directory / CONFIG}: {error}") from None
    stored.check_all_taken()
    return {name: parts[name] for name in entries}


def read_entries(directory: Path) -> dict[str, dict[str, Any]]:
    """The parts that config.json names, each with its kind and settings; another program's file is refused."""
    path = directory / CONFIG
    values = read_json(path)
    model_type, version = values.pop("model_type", None), values.pop("format", None)
    if model_type == MODEL_TYPE and version == FORMAT:
        return {TOKENIZER: {"kind": TOKENIZER}, DECODER: {"kind": DECODER, **values}}
    if model_type == MODEL_TYPE and version == FORMAT_WITH_PARTS:
        entries = values.get("parts")
        if isinstance(entries, dict) and entries and all(isinstance(entry, dict) for entry in entries.values()):
            return entries
        raise CheckpointError(f"{path} names no parts; it is damaged")
    raise CheckpointError(
        f"{path} says model_type {model_type!r}, format {version!r}; this version reads {MODEL_TYPE!r}, formats "
        f"{FORMAT} and {FORMAT_WITH_PARTS}"
    )


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


def weight_key(part: type[Part], name: str, path: str) -> str:
    """The key on disk of a weight of the part called `name`."""
    return path if part.is_inside_decoder else f"{name}.{path}"


def check_finite(weights: Mapping[str, Tensor], path: Path, *, rows: int | None = ROWS_CHECKED) -> None:
    """Refuse weights with NaN or infinity: vectors as a whole, of matrices `rows` rows spread evenly (None: all).

    A few rows show a model that diverged and leave the others unread on the disk. Other values that are not finite
    reach the logits, which are checked before each use.
    """
    for name, weight in weights.items():
        part = weight if rows is None or weight.dim() < 2 else weight[:: max(1, len(weight) // rows)]
        if not bool(part.sum().isfinite()) and not bool(part.isfinite().all()):  # finite values may overflow a sum
            raise CheckpointError(
                f"{path}: '{name}' has values that are not finite (NaN or infinity); the model is damaged"
            )


def check_vocabulary(tokenizer: Tokenizer, config: ModelConfig, directory: Path) -> None:
    """Refuse a tokenizer with tokens that the model has no row for."""
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size}; "
            "they do not belong together"
        )


def check_depth(config: ModelConfig, stored: StoredWeights) -> None:
    """Refuse many more layers than the file has weights for, before time is spent on making them."""
    count = len(stored.tensors)
    if config.num_layers > count:
        raise CheckpointError(
            f"{stored.path} has {count} weights, too few for the configuration's {config.num_layers} layers"
        )


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors; a full disk or a missing permission is an `OutputError`."""
    try:
        path.touch()
        mode = path.stat().st_mode
        save_file(tensors, path, metadata=metadata)
        path.chmod(mode)  # the library lets only the owner read it
    except (OSError, SafetensorError) as error:
        raise OutputError(f"could not write {path}: {error}") from error


def open_tensors(path: Path):
    """Open a safetensors file, memory-mapped; any other file under that name is a `CheckpointError`."""
    check_header(path, HEADER_LIMIT)
    try:
        return open_by_library(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged, cut short or not a safetensors file: {error}") from None

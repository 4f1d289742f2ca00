"""config.json of a saved model: the kinds and settings of its parts, and checks that need no weights and no torch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from foretell.config.model import ModelConfig
from foretell.config.quantization import MATRIX_TENSORS, QuantizationConfig
from foretell.config.section import make_section
from foretell.config.weight_shapes import weight_shapes
from foretell.errors import CheckpointError, ConfigError
from foretell.saved_model.retired import PARTS
from foretell.storage.files import CONFIG, MODEL_TYPE, TOKENIZER_FILE, WEIGHTS, read_json
from foretell.storage.safetensors_header import MOST_OWN_HEADER_BYTES, StoredTensor, check_shapes, read_header
from foretell.text import Tokenizer, id_tokenizer, load_tokenizer

FORMAT, FORMAT_WITH_PARTS = 1, 2
NO_TOKENIZER = "no tokenizer; a text is token ids, such as '464 3290'"
COMMANDS = {"series_codec": "forecast {} DATA", "encoder_decoder": "translate {} TEXT"}  # kind of a part -> command
DECODER, TOKENIZER, QUANTIZATION, LORA = "decoder", "tokenizer", "quantization", "lora"
GGUF_PAIRS = "gguf_pairs"
OUTSIDE_DECODER = ("series_codec", "task_head", GGUF_PAIRS)  # kinds without weights in the decoder's module tree

logger = logging.getLogger(__name__)


def is_own(directory: Path) -> bool:
    """True for a directory in foretell's own layout, not in Hugging Face's."""
    return read_json(directory / CONFIG).get("model_type") in (MODEL_TYPE, None)


def read_entries(directory: Path) -> dict[str, dict[str, Any]]:
    """The parts in config.json, each with its kind and settings. Refuses another program's file."""
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
        f"{path} has model_type {model_type!r}, format {version!r}; this version reads {MODEL_TYPE!r}, formats "
        f"{FORMAT} and {FORMAT_WITH_PARTS}"
    )


def read_parts(directory: Path) -> tuple[dict[str, dict[str, Any]], dict[str, StoredTensor]]:
    """The parts in config.json and the tensors of a saved model, without parts that are not read any more."""
    entries, tensors = read_entries(directory), read_header(directory / WEIGHTS, MOST_OWN_HEADER_BYTES)
    retired = {name: entry["kind"] for name, entry in entries.items() if entry.get("kind") in tuple(PARTS)}
    for name, kind in retired.items():
        if difference := PARTS[kind]:
            logger.warning(f"left out    the part {name} of {directory}: {difference}")
    return (
        {name: entry for name, entry in entries.items() if name not in retired},
        {key: tensor for key, tensor in tensors.items() if key.partition(".")[0] not in retired},
    )


INTEGERS = {"I8": ("int8", 1), "U8": ("int4", 2)}  # type on disk: scheme, and weights in a byte


@dataclass(frozen=True)
class StoredWeight:
    """A weight in a file. bytes: including scales and minima. type: the dtype, or the scheme if quantised."""

    path: str
    shape: tuple[int, ...]
    parameters: int
    type: str
    bytes: int


@dataclass(frozen=True)
class StoredModel:
    """A language model as its files describe it; no weight is read. tensors: for all parts, by path."""

    config: ModelConfig
    tokenizer: Tokenizer
    tensors: dict[str, StoredTensor]
    quantization: QuantizationConfig | None
    notes: tuple[str, ...] = ()

    def weights(self) -> Iterator[StoredWeight]:
        """The weights in the order of the modules; a quantised matrix with its scales and minima is one weight."""
        paths = weight_shapes(self.config)
        inside = {path.partition(".")[0] for path in paths}
        for path in (*paths, *(name for name in self.tensors if name.partition(".")[0] not in inside)):
            layer = path.removesuffix(".weight")
            if matrix := self.tensors.get(f"{layer}.integers"):
                scheme, in_a_byte = INTEGERS.get(matrix.dtype, (matrix.dtype, 1))
                shape = (*matrix.shape[:-1], *(size * in_a_byte for size in matrix.shape[-1:]))
                parts = (self.tensors.get(f"{layer}.{part}") for part in MATRIX_TENSORS)
                yield StoredWeight(matrix.name, shape, prod(shape), scheme, sum(part.size for part in parts if part))
            elif tensor := self.tensors.get(path):
                yield StoredWeight(path, tensor.shape, prod(tensor.shape), tensor.float_name, tensor.size)


def read_stored_model(directory: Path) -> StoredModel | None:
    """The description of a decoder in foretell's own layout; None with LoRA updates or an encoder inside.

    Raises `CheckpointError` for shapes that differ from the configuration's and other damage.
    """
    path, (entries, tensors) = directory / WEIGHTS, read_parts(directory)
    kinds = {name: values.pop("kind", None) for name, values in entries.items()}
    own = {name: name for name in (DECODER, TOKENIZER, QUANTIZATION)}
    outside = [name for name, kind in kinds.items() if kind in OUTSIDE_DECODER]
    if DECODER not in kinds or any(kind != own.get(name) for name, kind in kinds.items() if name not in outside):
        return None
    try:
        config = make_section(ModelConfig, entries[DECODER])
        settings = entries.get(QUANTIZATION)
        quantization = None if settings is None else make_section(QuantizationConfig, settings, QUANTIZATION)
        check_depth(config, len(tensors), path)
        shapes = weight_shapes(config)
    except ConfigError as error:
        raise CheckpointError(f"{directory / CONFIG}: {error}") from None
    if quantization is None:
        check_shapes(tensors, shapes, path)
    in_matrices = () if quantization is None else MATRIX_TENSORS
    for name in tensors:
        if name not in shapes and name.partition(".")[0] not in outside and name.rpartition(".")[2] not in in_matrices:
            raise CheckpointError(f"{path} has a weight '{name}' that the model does not")
    tokenizer = load_tokenizer(directory / TOKENIZER_FILE) if TOKENIZER in kinds else id_tokenizer(config.vocab_size)
    notes = () if TOKENIZER in kinds or command_of("", kinds.values()) else (f"{directory}: {NO_TOKENIZER}",)
    check_vocabulary(tokenizer, config, directory)
    return StoredModel(config, tokenizer, tensors, quantization, notes)


def command_of(name: str, kinds: Iterable[str]) -> str:
    """The command for a model of another kind than a language model; empty for a language model."""
    return next((f"foretell {COMMANDS[kind].format(name)}" for kind in kinds if kind in COMMANDS), "")


def check_vocabulary(tokenizer: Tokenizer, config: ModelConfig, directory: Path) -> None:
    """Refuse a tokenizer with more tokens than the model's vocabulary."""
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size}; "
            "they do not belong together"
        )


def check_depth(config: ModelConfig, count: int, where: Path) -> None:
    """Refuse a configuration with more layers than `count` weights, before the layers are made."""
    if config.num_layers > count:
        raise CheckpointError(
            f"{where} has {count} weights, too few for the configuration's {config.num_layers} layers"
        )

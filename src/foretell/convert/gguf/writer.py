"""A model as one GGUF file: the precision of each tensor, packed by the `gguf` package, and the file.

q8_0 stores blocks of 32 values of a row as 8-bit integers with one scale in float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from foretell.config import ModelConfig
from foretell.convert.family import Family
from foretell.convert.gguf.architectures import FREQUENCIES, frequency_divisors, write_metadata
from foretell.convert.gguf.vocabulary import write_vocabulary
from foretell.convert.weights import iter_ours, iter_theirs
from foretell.errors import OutputError, UsageError
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights
from foretell.textbook.vectors import Matrix

# name on the command line -> llama.cpp's file type
PRECISIONS = {"f32": 0, "f16": 1, "q8_0": 7}
BLOCK = 32
ALWAYS_FULL = ("position_embd.weight",)  # llama.cpp adds its rows without conversion
QUANTIZATION_VERSION = 2  # of ggml's blocks


def import_gguf() -> ModuleType:
    """The optional package `gguf`; a `UsageError` says how to install it."""
    try:
        import gguf
    except ImportError:
        raise UsageError("--to gguf needs the extra 'gguf': pip install 'foretell[gguf]'") from None
    return gguf


@dataclass(frozen=True)
class Packed:
    """A tensor as stored in the file."""

    precision: str
    content: np.ndarray[Any, Any]


def precision_of(name: str, shape: tuple[int, ...], wanted: str) -> str:
    """The precision of a tensor: f32 for vectors, f16 instead of q8_0 if the row length is not a multiple of 32."""
    if len(shape) < 2 or name in ALWAYS_FULL:
        return "f32"
    if wanted == "q8_0" and shape[-1] % BLOCK:
        return "f16"
    return wanted


def pack(gguf: ModuleType, name: str, array: Matrix, precision: str) -> np.ndarray[Any, Any]:
    """The packed values of a tensor; overflow is an `OutputError`."""
    kind = gguf.GGMLQuantizationType[precision.upper()]
    with np.errstate(over="ignore", invalid="ignore"):
        packed = gguf.quantize(array, kind)
        if not np.isfinite(gguf.dequantize(packed, kind)).all():
            raise OutputError(f"'{name}' holds values that are not finite in {precision}; give another --dtype")
    return packed


def unpack(gguf: ModuleType, packed: np.ndarray[Any, Any], precision: str) -> Matrix:
    """The values of a packed tensor, in float32."""
    return gguf.dequantize(packed, gguf.GGMLQuantizationType[precision.upper()])


def pack_weights(gguf: ModuleType, decoder: Decoder, family: Family, precision: str) -> dict[str, Packed]:
    """Every tensor of the file, by name."""
    config = decoder.config
    weights = {path: weight.detach().to("cpu", torch.float32) for path, weight in decoder.named_parameters()}
    packed = {}
    for name, tensor in iter_theirs(family, config, weights):
        kind = precision_of(name, tuple(tensor.shape), precision)
        packed[name] = Packed(kind, pack(gguf, name, tensor.numpy(), kind))
    divisors = frequency_divisors(config)
    if divisors is not None:
        packed[FREQUENCIES] = Packed("f32", divisors)
    return packed


def unpacked_model(
    gguf: ModuleType, model: LanguageModel, family: Family, packed: Mapping[str, Packed]
) -> LanguageModel:
    """The model with the values of the packed tensors, in float32."""

    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(unpack(gguf, packed[name].content, packed[name].precision)))

    decoder = decoder_with_weights(model.decoder.config, dict(iter_ours(family, model.decoder.config, read)))
    return LanguageModel(decoder.eval(), model.tokenizer, model.name)


def describe_file(model: LanguageModel, family: Family, precision: str) -> dict[str, Any]:
    """The key-value pairs of the file."""
    config: ModelConfig = model.decoder.config
    return {
        "general.type": "model",
        "general.name": Path(model.name).name,
        "general.file_type": PRECISIONS[precision],
        **({"general.quantization_version": QUANTIZATION_VERSION} if precision == "q8_0" else {}),
        **write_metadata(family, config),
        **write_vocabulary(model.tokenizer, config.vocab_size),
    }


def write_gguf(
    gguf: ModuleType, path: Path, architecture: str, pairs: Mapping[str, Any], tensors: Mapping[str, Packed]
) -> None:
    """Write the file. Raises `OSError`."""
    writer = gguf.GGUFWriter(path, architecture)
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    try:
        for key, value in pairs.items():
            add[type(value)](key, value)
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor.content, raw_dtype=gguf.GGMLQuantizationType[tensor.precision.upper()])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()

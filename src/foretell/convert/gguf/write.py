"""A model as one GGUF file."""

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
from foretell.convert.gguf.metadata import FREQUENCIES, frequency_divisors, write_metadata
from foretell.convert.gguf.precision import PRECISIONS, pack, precision_of, unpack
from foretell.convert.gguf.vocabulary import write_vocabulary
from foretell.convert.layout import iter_ours, iter_theirs
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights

QUANTIZATION_VERSION = 2  # of ggml's blocks


@dataclass(frozen=True)
class Packed:
    """A tensor as it is stored."""

    precision: str
    content: np.ndarray[Any, Any]


def pack_weights(gguf: ModuleType, decoder: Decoder, family: Family, precision: str) -> dict[str, Packed]:
    """Every tensor of the file, by its name."""
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
    """The model with the numbers that the packed tensors hold, in float32."""

    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(unpack(gguf, packed[name].content, packed[name].precision)))

    decoder = decoder_with_weights(model.decoder.config, dict(iter_ours(family, model.decoder.config, read)))
    return LanguageModel(decoder.eval(), model.tokenizer, model.name)


def describe_file(model: LanguageModel, family: Family, precision: str) -> dict[str, Any]:
    """All key-value pairs of the file."""
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
    """Write the file. An `OSError` is left to the caller."""
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

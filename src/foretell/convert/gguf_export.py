"""Export of a model as a GGUF file, which is read back with the `gguf` package to check parity.

The `gguf` package packs the tensors. q8_0 stores blocks of 32 values of a row as 8-bit integers with one scale in
float16.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tokenizers
import torch

from foretell.config.model import ModelConfig
from foretell.convert import gguf_metadata
from foretell.convert.family import Family, check_weights, iter_ours, iter_theirs
from foretell.convert.parity import ReadBack, check_parity, report_head, rounding
from foretell.errors import OutputError, UsageError
from foretell.files import check_new, new_files, write_json
from foretell.language_model import LanguageModel
from foretell.manifest import EXPORT_REPORT, describe_files
from foretell.model.decoder import Decoder
from foretell.model.init import empty_decoder, fill_decoder
from foretell.textbook.attention import Matrix

# name on the command line -> llama.cpp's file type
PRECISIONS = {"f32": 0, "f16": 1, "q8_0": 7}
BLOCK = 32
ALWAYS_FULL = ("position_embd.weight",)  # llama.cpp adds its rows without conversion
QUANTIZATION_VERSION = 2  # version of ggml's block formats


def export_gguf(
    model: LanguageModel, target: Path, precision: str = "f32", family_name: str | None = None
) -> dict[str, Any]:
    """Write a float32 model on the CPU as a new GGUF file, with a report in the same folder; returns the report.

    precision: 'f32', 'f16' or 'q8_0'. By default, the first architecture that can express the model is chosen. Raises
    ConfigError for a configuration or weight that it cannot express, TokenizerError for a tokenizer that llama.cpp does
    not support, and OutputError for a missed bound; nothing is written in these cases.
    """
    model.check_not_quantized("convert")
    check_new(target)
    gguf = import_gguf()
    config = model.decoder.config
    family = gguf_metadata.choose_architecture(config, family_name)
    check_weights(family, config, model.decoder.state_dict())
    pairs = describe_file(model, family, precision)
    tensors = pack_weights(gguf, model.decoder, family, precision)
    written = model if precision == "f32" else unpacked_model(gguf, model, family, tensors)
    report_path = target.with_name(EXPORT_REPORT)
    if report_path.exists():
        report_path = target.with_name(f"{target.stem}.{EXPORT_REPORT}")
    prepare = partial(unicodedata.normalize, "NFC") if gguf_metadata.is_composed(model.tokenizer.to_json()) else str
    with new_files(target, report_path) as (file, report_file):
        write_gguf(gguf, file, family.name, pairs, tensors)
        report = {
            **report_head(family, precision),
            "pre_tokenizer": pairs["tokenizer.ggml.pre"],
            **check_parity(read_gguf(gguf, file), written, prepare),
            "rounding": rounding(model, written) if precision != "f32" else None,
            "notes": notes(model, tensors, precision),
            "files": describe_files([file]),
        }
        write_json(report_file, report)
    return report


def import_gguf() -> ModuleType:
    """The optional package `gguf`, or a `UsageError` with the command that installs it."""
    try:
        import gguf
    except ImportError:
        raise UsageError("gguf needs the extra 'gguf': pip install 'foretell[gguf]'") from None
    return gguf


def notes(model: LanguageModel, tensors: Mapping[str, Packed], precision: str) -> list[str]:
    lines = []
    if precision == "q8_0" and (wider := [name for name, tensor in tensors.items() if tensor.precision == "f16"]):
        lines.append(
            f"{len(wider)} of {len(tensors)} tensors have rows whose length is not a multiple of 32: f16, not q8_0"
        )
    if gguf_metadata.is_composed(model.tokenizer.to_json()):
        lines.append("the tokenizer normalizes text to NFC, but llama.cpp does not: normalize texts before using it")
    if len(model.tokenizer.end_ids) > 2:
        lines.append(f"{len(model.tokenizer.end_ids)} tokens end a text; GGUF stores the first two")
    return lines


@dataclass(frozen=True)
class Packed:
    precision: str
    content: np.ndarray[Any, Any]


def pack_weights(gguf: ModuleType, decoder: Decoder, family: Family, precision: str) -> dict[str, Packed]:
    weights = {path: weight.detach().to("cpu", torch.float32) for path, weight in decoder.named_parameters()}
    packed = {}
    for name, tensor in iter_theirs(family, decoder.config, weights):
        kind = precision_of(name, tuple(tensor.shape), precision)
        packed[name] = Packed(kind, pack(gguf, name, tensor.numpy(), kind))
    divisors = gguf_metadata.frequency_divisors(decoder.config)
    if divisors is not None:
        packed[gguf_metadata.FREQUENCIES] = Packed("f32", divisors)
    return packed


def precision_of(name: str, shape: tuple[int, ...], wanted: str) -> str:
    """The precision of a tensor: f32 for vectors, f16 instead of q8_0 if the row length is not a multiple of 32."""
    if len(shape) < 2 or name in ALWAYS_FULL:
        return "f32"
    return "f16" if wanted == "q8_0" and shape[-1] % BLOCK else wanted


def pack(gguf: ModuleType, name: str, array: Matrix, precision: str) -> np.ndarray[Any, Any]:
    """The packed values of a tensor; overflow is an `OutputError`."""
    kind = gguf.GGMLQuantizationType[precision.upper()]
    with np.errstate(over="ignore", invalid="ignore"):
        packed = gguf.quantize(array, kind)
        if not np.isfinite(gguf.dequantize(packed, kind)).all():
            raise OutputError(f"'{name}' holds values that are not finite in {precision}; give another dtype")
    return packed


def unpacked_model(
    gguf: ModuleType, model: LanguageModel, family: Family, packed: Mapping[str, Packed]
) -> LanguageModel:
    """The model with the values of the packed tensors, in float32."""

    def read(name: str) -> torch.Tensor:
        tensor = packed[name]
        return torch.from_numpy(
            np.array(gguf.dequantize(tensor.content, gguf.GGMLQuantizationType[tensor.precision.upper()]))
        )

    decoder = fill_decoder(empty_decoder(model.decoder.config), dict(iter_ours(family, model.decoder.config, read)))
    return LanguageModel(decoder.eval(), model.tokenizer, model.name)


def describe_file(model: LanguageModel, family: Family, precision: str) -> dict[str, Any]:
    config: ModelConfig = model.decoder.config
    return {
        "general.type": "model",
        "general.name": Path(model.name).name,
        "general.file_type": PRECISIONS[precision],
        **({"general.quantization_version": QUANTIZATION_VERSION} if precision == "q8_0" else {}),
        **gguf_metadata.write_metadata(family, config),
        **gguf_metadata.write_vocabulary(model.tokenizer, config.vocab_size),
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


def read_gguf(gguf: ModuleType, path: Path) -> ReadBack:
    """Configuration, float32 weights and tokenizer from the file, read by the `gguf` package."""
    reader = gguf.GGUFReader(path)
    pairs = {name: field.contents() for name, field in reader.fields.items()}
    arrays: dict[str, Matrix] = {
        tensor.name: np.array(gguf.dequantize(tensor.data, tensor.tensor_type)) for tensor in reader.tensors
    }
    family, config = gguf_metadata.read_metadata(pairs, arrays)
    check_frequencies(config, arrays)
    weights = iter_ours(family, config, lambda name: torch.from_numpy(arrays[name]))
    return ReadBack(
        config,
        {module: tensor.numpy() for module, tensor in weights},
        gguf_metadata.read_vocabulary(pairs),
        f"gguf {version('gguf')}, tokenizers {tokenizers.__version__}, the textbook in NumPy",
    )


def check_frequencies(config: ModelConfig, arrays: dict[str, Matrix]) -> None:
    """Refuse divisors of the rotary frequencies that do not agree with the scaling."""
    expected, stored = gguf_metadata.frequency_divisors(config), arrays.get(gguf_metadata.FREQUENCIES)
    if expected is None and stored is None:
        return
    if expected is None or stored is None or not np.allclose(expected, stored, rtol=1e-5):
        raise OutputError(f"the export differs from the model: '{gguf_metadata.FREQUENCIES}' is wrong")

"""Write a model as a GGUF file, read it back with the `gguf` package, and check parity."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tokenizers
import torch

from foretell.config import ModelConfig
from foretell.convert.gguf.architectures import FREQUENCIES, choose_architecture, frequency_divisors, read_metadata
from foretell.convert.gguf.vocabulary import is_composed, read_vocabulary
from foretell.convert.gguf.writer import (
    PRECISIONS,
    Packed,
    describe_file,
    import_gguf,
    pack_weights,
    unpacked_model,
    write_gguf,
)
from foretell.convert.parity import FORMAT, ReadBack, check_parity, rounding
from foretell.convert.weights import check_weights, iter_ours
from foretell.errors import OutputError, UsageError, did_you_mean
from foretell.files import check_new, new_files, write_json
from foretell.language_model import LanguageModel
from foretell.manifest import EXPORT_REPORT, describe_files
from foretell.textbook.vectors import Matrix


def export_gguf(
    model: LanguageModel, target: Path, precision: str = "f32", family_name: str | None = None
) -> dict[str, Any]:
    """Write a float32 model on the CPU as a new GGUF file; returns the content of the report written next to it.

    `precision` is 'f32', 'f16' or 'q8_0'. Without a name, the first architecture that can express the model is chosen.
    A configuration or weight that it cannot express is a `ConfigError`, a tokenizer that llama.cpp does not have a
    `TokenizerError`, a missed bound an `OutputError`; all leave nothing behind.
    """
    if precision not in PRECISIONS:
        near = did_you_mean(precision, PRECISIONS) or f"; known: {', '.join(PRECISIONS)}"
        raise UsageError(f"unknown GGUF precision '{precision}'{near}")
    model.check_not_quantized("convert")
    check_new(target)
    gguf = import_gguf()
    family = choose_architecture(model.decoder.config, family_name)
    check_weights(family, model.decoder.config, model.decoder.state_dict())
    pairs = describe_file(model, family, precision)
    tensors = pack_weights(gguf, model.decoder, family, precision)
    written = model if precision == "f32" else unpacked_model(gguf, model, family, tensors)
    report_path = report_path_for(target)
    prepare = compose if is_composed(model.tokenizer.to_json()) else str
    with new_files(target, report_path) as (file, report_file):
        write_gguf(gguf, file, family.name, pairs, tensors)
        report = {
            "format": FORMAT,
            "foretell": version("foretell"),
            "family": family.name,
            "architecture": family.architecture,
            "dtype": precision,
            "pre_tokenizer": pairs["tokenizer.ggml.pre"],
            **check_parity(read_gguf(gguf, file), written, prepare),
            "rounding": rounding(model, written) if precision != "f32" else None,
            "notes": notes(model, tensors, precision),
            "files": describe_files([file]),
        }
        write_json(report_file, report)
    return report


def report_path_for(target: Path) -> Path:
    """export-report.json next to the target, or a name made from the target's if that exists."""
    plain = target.with_name(EXPORT_REPORT)
    return target.with_name(f"{target.stem}.{EXPORT_REPORT}") if plain.exists() else plain


def compose(text: str) -> str:
    """The text in Unicode's NFC form."""
    return unicodedata.normalize("NFC", text)


def notes(model: LanguageModel, tensors: Mapping[str, Packed], precision: str) -> list[str]:
    """What a user of the file should know."""
    lines = []
    if precision == "q8_0" and (wider := [name for name, tensor in tensors.items() if tensor.precision == "f16"]):
        lines.append(
            f"{len(wider)} of {len(tensors)} tensors have rows whose length is not a multiple of 32: f16, not q8_0"
        )
    if is_composed(model.tokenizer.to_json()):
        lines.append(
            "the tokenizer normalizes text to NFC and llama.cpp does not: normalize texts before it reads them"
        )
    if len(model.tokenizer.end_ids) > 2:
        lines.append(f"{len(model.tokenizer.end_ids)} tokens end a text; GGUF stores the first two")
    return lines


def read_gguf(gguf: ModuleType, path: Path) -> ReadBack:
    """Configuration, weights in float32 and tokenizer from the file alone, by the `gguf` package."""
    reader = gguf.GGUFReader(path)
    pairs = {name: field.contents() for name, field in reader.fields.items()}
    arrays: dict[str, Matrix] = {
        tensor.name: np.array(gguf.dequantize(tensor.data, tensor.tensor_type)) for tensor in reader.tensors
    }
    family, config = read_metadata(pairs, arrays)
    check_frequencies(config, arrays)
    weights = iter_ours(family, config, lambda name: torch.from_numpy(arrays[name]))
    return ReadBack(
        config,
        {module: tensor.numpy() for module, tensor in weights},
        read_vocabulary(pairs),
        f"gguf {version('gguf')}, tokenizers {tokenizers.__version__}, the textbook in NumPy",
    )


def check_frequencies(config: ModelConfig, arrays: dict[str, Matrix]) -> None:
    """Refuse divisors of the rotary frequencies that do not follow from the scaling."""
    expected, stored = frequency_divisors(config), arrays.get(FREQUENCIES)
    if expected is None and stored is None:
        return
    if expected is None or stored is None or not np.allclose(expected, stored, rtol=1e-5):
        raise OutputError(f"the export differs from the model: '{FREQUENCIES}' is wrong")

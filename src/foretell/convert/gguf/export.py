"""Write a model as a GGUF file, prove that it is the same model, and leave nothing where it is not."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from foretell.convert.gguf.architectures import choose_architecture
from foretell.convert.gguf.package import import_gguf
from foretell.convert.gguf.precision import PRECISIONS
from foretell.convert.gguf.reading import read_gguf
from foretell.convert.gguf.vocabulary import is_composed
from foretell.convert.gguf.write import Packed, describe_file, pack_weights, unpacked_model, write_gguf
from foretell.convert.proof import prove, rounding
from foretell.convert.report import FORMAT, REPORT, check_target, describe_files
from foretell.errors import UsageError, did_you_mean
from foretell.files import new_files, write_json
from foretell.language_model import LanguageModel


def export_gguf(
    model: LanguageModel, target: Path, precision: str = "f32", family_name: str | None = None
) -> dict[str, Any]:
    """Write a float32 model on the CPU as a new GGUF file; returns the content of the report beside it.

    `precision` is 'f32', 'f16' or 'q8_0'. Without a name, the architecture is the first that can express the model. A
    shape that none can express is a `ConfigError`, a tokenizer that llama.cpp has not a `TokenizerError`, a missed
    bound an `OutputError`; all leave nothing behind.
    """
    if precision not in PRECISIONS:
        near = did_you_mean(precision, PRECISIONS) or f"; it has {', '.join(PRECISIONS)}"
        raise UsageError(f"GGUF has no '{precision}' here{near}")
    check_target(target)
    gguf = import_gguf()
    family = choose_architecture(model.decoder.config, family_name)
    pairs = describe_file(model, family, precision)
    tensors = pack_weights(gguf, model.decoder, family, precision)
    written = model if precision == "f32" else unpacked_model(gguf, model, family, tensors)
    report_path = report_beside(target)
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
            **prove(read_gguf(gguf, file), written, prepare),
            "rounding": rounding(model, written) if precision != "f32" else None,
            "notes": notes(model, tensors, precision),
            "files": describe_files([file]),
        }
        write_json(report_file, report)
    return report


def report_beside(target: Path) -> Path:
    """export-report.json, or where another file's is there already, one that is named after the target."""
    plain = target.with_name(REPORT)
    return target.with_name(f"{target.stem}.{REPORT}") if plain.exists() else plain


def compose(text: str) -> str:
    """Unicode's NFC."""
    return unicodedata.normalize("NFC", text)


def notes(model: LanguageModel, tensors: Mapping[str, Packed], precision: str) -> list[str]:
    """What whoever uses the file should know."""
    lines = []
    if precision == "q8_0" and (wider := [name for name, one in tensors.items() if one.precision == "f16"]):
        lines.append(f"{len(wider)} of {len(tensors)} tensors have rows of no multiple of 32 numbers: f16, not q8_0")
    if is_composed(model.tokenizer.to_json()):
        lines.append(
            "the tokenizer composes characters (NFC) and llama.cpp does not: compose texts before it reads them"
        )
    if len(model.tokenizer.end_ids) > 2:
        lines.append(f"{len(model.tokenizer.end_ids)} tokens end a text; GGUF has places for the first two")
    return lines

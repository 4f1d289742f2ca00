"""Write a model in another program's layout, prove that it is the same model, and leave nothing where it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from foretell.convert.families import FAMILIES, Families, choose_family
from foretell.convert.gguf.architectures import ARCHITECTURES
from foretell.convert.gguf.export import export_gguf
from foretell.convert.gguf.precision import PRECISIONS
from foretell.convert.huggingface import write_huggingface
from foretell.convert.proof import prove, rounding
from foretell.convert.read_again import read_directory
from foretell.convert.report import FORMAT, REPORT, check_target, describe_files
from foretell.errors import OutputError, UsageError
from foretell.files import new_directory, write_json
from foretell.language_model import LanguageModel
from foretell.model.init import decoder_with_weights

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def export_huggingface(
    model: LanguageModel, target: Path, dtype: torch.dtype = torch.float32, family_name: str | None = None
) -> dict[str, Any]:
    """Write a float32 model on the CPU as a new Hugging Face directory; returns the content of its report.

    Without a name, the family is the first that can express the model. A shape that none can express is a
    `ConfigError`, a missed bound an `OutputError`; both leave nothing behind.
    """
    check_target(target)
    family = choose_family(model.decoder.config, family_name)
    written = rounded(model, dtype)
    with new_directory(target) as directory:
        write_huggingface(directory, written, family, dtype)
        report = {
            "format": FORMAT,
            "foretell": version("foretell"),
            "family": family.name,
            "architecture": family.architecture,
            "dtype": str(dtype).removeprefix("torch."),
            **prove(read_directory(directory), written),
            "rounding": rounding(model, written) if dtype != torch.float32 else None,
            "notes": notes(family.tokenizer_class),
            "files": describe_files(directory.iterdir()),
        }
        write_json(directory / REPORT, report)
    return report


@dataclass(frozen=True)
class Exporter:
    """A layout to write: the words for its precisions, and which one is for weights that are stored so."""

    export: Callable[..., dict[str, Any]]
    precisions: Mapping[str, Any]
    defaults: Mapping[torch.dtype, str]
    families: Families

    def check_precision(self, layout: str, name: str) -> None:
        """Refuse a precision that the layout does not have."""
        if name not in self.precisions:
            raise UsageError(f"--to {layout} writes {', '.join(self.precisions)}, not {name}")


EXPORTERS: dict[str, Exporter] = {
    "huggingface": Exporter(export_huggingface, DTYPES, {dtype: name for name, dtype in DTYPES.items()}, FAMILIES),
    "gguf": Exporter(
        export_gguf,
        {name: name for name in PRECISIONS},
        {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "f32"},
        ARCHITECTURES,
    ),
}


def notes(tokenizer_class: str | None) -> list[str]:
    """What whoever loads the directory should know."""
    if tokenizer_class is None:
        return []
    return [
        f"transformers 5 makes a {tokenizer_class} of whatever tokenizer lies here; "
        "PreTrainedTokenizerFast.from_pretrained takes the one that does"
    ]


def rounded(model: LanguageModel, dtype: torch.dtype) -> LanguageModel:
    """The model with its weights as they will be on disk, in float32; numbers that become infinite are refused."""
    weights = {path: weight.detach().to(dtype) for path, weight in model.decoder.named_parameters()}
    for path, weight in weights.items():
        if not weight.isfinite().all():
            name = str(dtype).removeprefix("torch.")
            raise OutputError(f"'{path}' holds numbers that are not finite in {name}; give another --dtype")
    if dtype == torch.float32:
        return model
    decoder = decoder_with_weights(model.decoder.config, {path: weight.float() for path, weight in weights.items()})
    return LanguageModel(decoder.eval(), model.tokenizer, model.name)

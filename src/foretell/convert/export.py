"""Write a model in another program's layout, prove that it is the same model, and leave nothing where it is not."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foretell.convert.families import choose_family
from foretell.convert.huggingface import write_huggingface
from foretell.convert.proof import divergence, logits_of, make_probes, prove
from foretell.errors import OutputError
from foretell.model.init import empty_decoder
from foretell.runs.files import new_directory, sha256, write_json
from foretell.runs.saved_model import LanguageModel

REPORT, FORMAT = "export-report.json", 1
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
            **prove(directory, written),
            "rounding": rounding(model, written) if dtype != torch.float32 else None,
            "notes": notes(family.tokenizer_class),
            "files": {
                path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
                for path in sorted(directory.iterdir())
            },
        }
        write_json(directory / REPORT, report)
    return report


EXPORTERS: dict[str, Callable[..., dict[str, Any]]] = {"huggingface": export_huggingface}


def check_target(target: Path) -> None:
    """Refuse to write over anything."""
    if target.is_symlink() or target.exists():
        raise OutputError(f"{target} exists; give another TARGET")


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
    decoder = empty_decoder(model.decoder.config)
    decoder.load_state_dict({path: weight.float() for path, weight in weights.items()}, assign=True)
    return LanguageModel(decoder.eval(), model.tokenizer, model.name)


def rounding(model: LanguageModel, written: LanguageModel) -> dict[str, float]:
    """What the smaller precision alone has changed, on the same probes."""
    pairs = [
        (logits_of(model.decoder, probe.ids), logits_of(written.decoder, probe.ids)) for probe in make_probes(model)
    ]
    return {
        "logit_change": max(float(np.abs(before - after).max()) for before, after in pairs),
        "divergence": max(divergence(before, after) for before, after in pairs),
    }

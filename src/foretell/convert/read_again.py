"""A Hugging Face directory, read again by libraries that did not write it."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from pathlib import Path

import tokenizers
import torch

from foretell.convert.directory import WEIGHTS
from foretell.convert.huggingface import read_config
from foretell.convert.layout import iter_ours
from foretell.convert.proof import Reading
from foretell.errors import OutputError
from foretell.textbook.family_weights import load_weights
from foretell.textbook.vectors import Matrix


def read_directory(directory: Path) -> Reading:
    """Configuration, weights and tokenizer from what is on disk."""
    family, config, _ = read_config(directory)
    arrays: dict[str, Matrix] = {}
    for file in sorted(directory.glob("*.safetensors")):
        arrays |= load_weights(file)
    if not arrays:
        raise OutputError(f"{directory} has no {WEIGHTS}")
    ours = iter_ours(family, config, partial(_as_tensor, arrays))
    return Reading(
        config,
        {path: tensor.numpy() for path, tensor in ours},
        tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")),
        f"safetensors {version('safetensors')}, tokenizers {version('tokenizers')}, the textbook in NumPy",
    )


def _as_tensor(arrays: dict[str, Matrix], name: str) -> torch.Tensor:
    return torch.from_numpy(arrays[name])

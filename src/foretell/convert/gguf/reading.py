"""A GGUF file, read again by the `gguf` package: configuration, weights and tokenizer from the file alone."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import numpy as np
import tokenizers
import torch

from foretell.config import ModelConfig
from foretell.convert.gguf.metadata import FREQUENCIES, frequency_divisors, read_metadata
from foretell.convert.gguf.vocabulary import read_vocabulary
from foretell.convert.layout import iter_ours
from foretell.convert.proof import Reading
from foretell.errors import OutputError
from foretell.textbook.vectors import Matrix


def read_gguf(gguf: ModuleType, path: Path) -> Reading:
    """All that the file says, in float32."""
    reader = gguf.GGUFReader(path)
    pairs = {name: field.contents() for name, field in reader.fields.items()}
    arrays: dict[str, Matrix] = {
        tensor.name: np.array(gguf.dequantize(tensor.data, tensor.tensor_type)) for tensor in reader.tensors
    }
    family, config = read_metadata(pairs, arrays)
    check_frequencies(config, arrays)
    weights = iter_ours(family, config, lambda name: torch.from_numpy(arrays[name]))
    return Reading(
        config,
        {module: tensor.numpy() for module, tensor in weights},
        read_vocabulary(pairs),
        f"gguf {version('gguf')}, tokenizers {tokenizers.__version__}, the textbook in NumPy",
    )


def check_frequencies(config: ModelConfig, arrays: dict[str, Matrix]) -> None:
    """Refuse divisors of the rotary frequencies that are not what the scaling means."""
    expected, found = frequency_divisors(config), arrays.get(FREQUENCIES)
    if expected is None and found is None:
        return
    if expected is None or found is None or not np.allclose(expected, found, rtol=1e-5):
        raise OutputError(f"what was written does not say what the model says: '{FREQUENCIES}' is wrong")

"""Loading of a GGUF file."""

from __future__ import annotations

from pathlib import Path

import torch

from foretell.convert.family import iter_ours
from foretell.convert.gguf.blocks import read_floats
from foretell.convert.gguf.files import read_gguf
from foretell.language_model import LanguageModel
from foretell.model.init import decoder_with_weights
from foretell.safetensors_files import check_finite


def load_gguf(
    path: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, *, name: str = "model"
) -> LanguageModel:
    """Load a model for inference. A damaged or unsupported file is a `CheckpointError` or `TokenizerError`."""
    file = read_gguf(path)
    ours = iter_ours(file.family, file.config, lambda name: read_floats(file.tensors[name], dtype))
    weights = {module: tensor.to(device) for module, tensor in ours}
    check_finite(weights, path)
    decoder = decoder_with_weights(file.config.replaced(dropout=0.0), weights)
    return LanguageModel(decoder.eval(), file.tokenizer, name, file.notes)

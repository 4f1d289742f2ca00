"""Loading of a Hugging Face directory, with weights by the family's table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from foretell.convert.family import Family, iter_ours
from foretell.convert.huggingface_files import find_tensors, read_directory
from foretell.errors import CheckpointError
from foretell.language_model import LanguageModel
from foretell.model.init import decoder_with_weights
from foretell.storage.safetensors_files import FLOATS, check_finite, read_tensor
from foretell.storage.safetensors_header import StoredTensor


def load_huggingface(
    directory: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, *, name: str = "model"
) -> LanguageModel:
    """Load a model for inference. A damaged or unsupported directory is a `CheckpointError` or `TokenizerError`."""
    files = read_directory(directory)
    if files.config.tie_embeddings:
        check_tied_head(files.family, files.tensors)
    config = files.config.replaced(dropout=0.0)
    ours = iter_ours(files.family, config, lambda name: read_tensor(files.tensors[name], dtype))
    weights = {path: tensor.to(device) for path, tensor in ours}
    check_finite(weights, directory)
    decoder = decoder_with_weights(config, weights)
    return LanguageModel(decoder.eval(), files.tokenizer, name, files.notes)


def stored_dtype(directory: Path) -> torch.dtype:
    """The precision of the directory's weights; float32 if they differ, and for a GGUF file."""
    if directory.is_file():
        return torch.float32
    dtypes = {FLOATS[tensor.dtype] for tensor in find_tensors(directory).values() if tensor.dtype in FLOATS}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def check_tied_head(family: Family, stored: Mapping[str, StoredTensor]) -> None:
    """Some files contain a copy of the tied embedding as the head; refuse one that differs."""
    head = stored.get(f"{family.head}.weight")
    if head is None:
        return
    embedding = stored[f"{family.rows[0].theirs}.weight"]
    dtype = FLOATS.get(embedding.dtype, torch.float32)
    if head.shape != embedding.shape or not torch.equal(read_tensor(head, dtype), read_tensor(embedding, dtype)):
        raise CheckpointError(
            f"{head.file}: '{family.head}.weight' is not the embedding, but config.json has tie_word_embeddings; "
            "one of the two is wrong"
        )

"""Loading of a GGUF file: matrices in blocks stay packed, with the same values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from foretell.convert.family import outputs_in_our_order, pairings
from foretell.convert.gguf.blocks import read_floats, read_matrix
from foretell.convert.gguf.files import GGUFFile, read_gguf
from foretell.convert.gguf.kept_pairs import KeptPairs, dropped_pairs, kept_pairs
from foretell.language_model import LanguageModel
from foretell.model.init import empty_decoder, fill_decoder
from foretell.model.quantize_decoder import quantize_decoder
from foretell.saved_model.config_file import GGUF_PAIRS, QUANTIZATION
from foretell.saved_model.layer_parts import QuantizationPart
from foretell.saved_model.part import Part
from foretell.storage.safetensors_files import check_finite


def load_gguf(
    path: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, *, name: str = "model"
) -> LanguageModel:
    """Load a model for inference. A damaged or unsupported file is a `CheckpointError` or `TokenizerError`."""
    file = read_gguf(path)
    weights = {name: weight.to(device) for name, weight in iter_weights(file, dtype)}
    check_finite({name: weight for name, weight in weights.items() if weight.is_floating_point()}, path)
    decoder = empty_decoder(file.config.replaced(dropout=0.0)).to(dtype)
    parts: dict[str, Part] = {GGUF_PAIRS: KeptPairs(kept_pairs(file.pairs))}
    if file.quantization is not None:
        quantize_decoder(decoder, file.quantization)
        parts[QUANTIZATION] = QuantizationPart(file.quantization)
    notes = (*file.notes, *(f"{path}: {note}" for note in dropped_pairs(file.pairs)))
    return LanguageModel(fill_decoder(decoder, weights).eval(), file.tokenizer, name, notes, parts)


def iter_weights(file: GGUFFile, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) for our weights in this dtype, and for the buffers of packed matrices."""
    packed = {} if file.quantization is None else file.quantization.forms
    precise = torch.promote_types(dtype, torch.float32)  # vectors are rounded after their transforms
    for pairing in pairings(file.family, file.config):
        stored, modules = file.tensors[pairing.theirs], [path.removesuffix(".weight") for path in pairing.ours]
        if modules[0] in packed:
            parts = {f".{name}": buffer for name, buffer in read_matrix(stored).items()}
        else:
            modules, parts = list(pairing.ours), {"": read_floats(stored, dtype if len(stored.shape) > 1 else precise)}
        for name, part in parts.items():
            ours = [part.contiguous() for part in outputs_in_our_order(pairing, file.config, part)]
            ours = ours if name else [part.to(dtype) for part in ours]
            yield from ((f"{module}{name}", tensor) for module, tensor in zip(modules, ours, strict=True))

"""Read a saved model: its parts in an order in which each can be checked against those before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from foretell.errors import CheckpointError, ConfigError
from foretell.files import CONFIG, MODEL_TYPE, WEIGHTS, read_json
from foretell.safetensors_reader import read_header
from foretell.saved_model.decoder_part import DECODER
from foretell.saved_model.part import Part, PartSource, StoredWeights, part_class
from foretell.saved_model.quantization_part import QUANTIZATION
from foretell.saved_model.save_parts import FORMAT, FORMAT_WITH_PARTS
from foretell.saved_model.tokenizer_part import TOKENIZER
from foretell.saved_model.weights_file import HEADER_LIMIT

READ_FIRST = (TOKENIZER, QUANTIZATION)  # a decoder is checked against the one and made by the other


def load_parts(
    directory: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    for_training: bool = False,
) -> dict[str, Part]:
    """Read a saved model, its parts by name in the order in which they were saved."""
    entries = read_entries(directory)
    kinds = {name: part_class(values.pop("kind", None), directory) for name, values in entries.items()}
    parts: dict[str, Part] = {}
    stored = StoredWeights(directory / WEIGHTS, read_header(directory / WEIGHTS, HEADER_LIMIT))
    # A decoder is checked against the vocabulary before its weights are read
    for name in sorted(entries, key=lambda name: kinds[name].kind not in READ_FIRST):
        source = PartSource(directory, name, kinds[name], stored, parts, device, dtype, for_training)
        try:
            parts[name] = kinds[name].load(entries[name], source)
        except ConfigError as error:
            raise CheckpointError(f"{directory / CONFIG}: {error}") from None
    stored.check_all_taken()
    return {name: parts[name] for name in entries}


def read_entries(directory: Path) -> dict[str, dict[str, Any]]:
    """The parts that config.json names, each with its kind and settings; another program's file is refused."""
    path = directory / CONFIG
    values = read_json(path)
    model_type, version = values.pop("model_type", None), values.pop("format", None)
    if model_type == MODEL_TYPE and version == FORMAT:
        return {TOKENIZER: {"kind": TOKENIZER}, DECODER: {"kind": DECODER, **values}}
    if model_type == MODEL_TYPE and version == FORMAT_WITH_PARTS:
        entries = values.get("parts")
        if isinstance(entries, dict) and entries and all(isinstance(entry, dict) for entry in entries.values()):
            return entries
        raise CheckpointError(f"{path} names no parts; it is damaged")
    raise CheckpointError(
        f"{path} says model_type {model_type!r}, format {version!r}; this version reads {MODEL_TYPE!r}, formats "
        f"{FORMAT} and {FORMAT_WITH_PARTS}"
    )

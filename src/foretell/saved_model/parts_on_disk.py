"""Save the parts of a model in a directory, and load them.

Each weight belongs to one part, and config.json describes every module. Parts are loaded in an order in which each can
be checked against the parts before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretell.data.data_use import DATA_USE
from foretell.errors import CheckpointError, ConfigError, OutputError, UsageError
from foretell.model.decoder import Decoder
from foretell.model.dispatch import plain_form
from foretell.model.init import empty_decoder
from foretell.saved_model.config_file import DECODER, FORMAT, FORMAT_WITH_PARTS, QUANTIZATION, TOKENIZER, read_parts
from foretell.saved_model.part import (
    KINDS,
    DecoderPart,
    Part,
    PartSource,
    StoredWeights,
    TokenizerPart,
    part_class,
    weight_key,
)
from foretell.storage.files import CONFIG, EXAMPLES, MODEL_TYPE, WEIGHTS, read_json, write_json
from foretell.storage.manifest import MANIFEST
from foretell.storage.safetensors_files import save_tensors
from foretell.text.tokenizer import CHAT_TEMPLATE, Tokenizer

READ_FIRST = (TOKENIZER, QUANTIZATION)  # the decoder's vocabulary is checked against the one; the other makes it


def save_parts(directory: Path, parts: Mapping[str, Part], dtype: torch.dtype | None = None) -> None:
    """Write a saved model into an existing directory; `dtype` converts weights, but not integers and scales."""
    weights = {
        key: weight.detach().to("cpu", dtype if isinstance(weight, nn.Parameter) else None).contiguous()
        for key, weight in keyed_weights(parts).items()
    }
    save_tensors(directory / WEIGHTS, weights)
    write_json(directory / CONFIG, {"model_type": MODEL_TYPE, **describe_parts(parts)})
    for part in parts.values():
        part.save_files(directory)


def keyed_weights(parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """The weights of all parts by their keys on disk; each weight belongs to one part.

    A weight in the decoder's module tree belongs to the decoder unless another part inside the decoder has it.
    """
    for part in parts.values():
        if isinstance(part, DecoderPart):
            check_described(part.decoder, parts)
    keyed: dict[str, Tensor] = {}
    others = [part for part in parts.values() if part.is_inside_decoder and part.kind != DECODER]
    inside = {key for part in others for key in part.weights()}
    for name, part in parts.items():
        for path, weight in part.weights().items():
            if part.kind == DECODER and path in inside:
                continue
            key = weight_key(type(part), name, path)
            assert key not in keyed, f"two parts have a weight '{key}'; give the part '{name}' another name"
            keyed[key] = weight
    return keyed


def check_described(decoder: Decoder, parts: Mapping[str, Part]) -> None:
    """Refuse a decoder with a module that config.json does not describe, because loading would make another model.

    Kernels count as the modules that they compute. A part inside the decoder describes the modules that it replaced.
    """
    owned = {
        path.rpartition(".")[0]
        for part in parts.values()
        if not isinstance(part, DecoderPart)
        for path in part.weights()
    }

    empty = empty_decoder(decoder.config)
    for part in parts.values():
        part.prepare(empty)
    described = dict(empty.named_modules())
    for path, module in decoder.named_modules():
        kind = type(described[path]) if path in described else None
        is_same = kind is not None and plain_form(type(module)) is plain_form(kind)
        if not is_same and not any(f"{path}.".startswith(f"{owner}.") for owner in owned):
            raise UsageError(
                f"'{path}' is a {type(module).__name__}, which a saved model cannot describe; save the weights of your "
                "own modules yourself, or make them a part (docs/saved_model.md)"
            )


def describe_parts(parts: Mapping[str, Part]) -> dict[str, Any]:
    """The content of config.json: format 1 for a decoder and a tokenizer, else format 2."""
    if {name: part.kind for name, part in parts.items()} == {DECODER: DECODER, TOKENIZER: TOKENIZER}:
        return {"format": FORMAT, **parts[DECODER].config()}
    return {
        "format": FORMAT_WITH_PARTS,
        "parts": {name: {"kind": part.kind, **part.config()} for name, part in parts.items()},
    }


def load_parts(
    directory: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    for_training: bool = False,
) -> dict[str, Part]:
    """Read a saved model, its parts by name in the order in which they were saved."""
    entries, tensors = read_parts(directory)
    kinds = {name: part_class(values.pop("kind", None), directory) for name, values in entries.items()}
    parts: dict[str, Part] = {}
    stored = StoredWeights(directory / WEIGHTS, tensors)
    # A decoder is checked against the vocabulary before its weights are read
    for name in sorted(entries, key=lambda name: kinds[name].kind not in READ_FIRST):
        source = PartSource(directory, name, kinds[name], stored, parts, device, dtype, for_training)
        try:
            parts[name] = kinds[name].load(entries[name], source)
        except ConfigError as error:
            raise CheckpointError(f"{directory / CONFIG}: {error}") from None
    stored.check_all_taken()
    return {name: parts[name] for name in entries}


def save_model(directory: Path, decoder: Decoder, tokenizer: Tokenizer, dtype: torch.dtype | None = None) -> None:
    """Write a model's files into an existing directory, with weights in `dtype` if given."""
    save_parts(directory, {DECODER: DecoderPart(decoder), TOKENIZER: TokenizerPart(tokenizer)}, dtype)


def load_decoder(directory: Path, device: torch.device) -> Decoder:
    """The decoder of a checkpoint, for training; `CheckpointError` for a model without one."""
    part = load_parts(directory, device, for_training=True).get(DECODER)
    if not isinstance(part, DecoderPart):
        raise CheckpointError(f"{directory} has no decoder; it is damaged")
    return part.decoder


def check_replaceable(directory: Path) -> None:
    """Refuse to write a saved model over anything but a saved model or an empty directory."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise OutputError(f"{directory} is a file; give the name of a directory")
    names = {path.name for path in directory.iterdir()}
    known = {WEIGHTS, CONFIG, CHAT_TEMPLATE, MANIFEST, EXAMPLES, DATA_USE}
    known |= {name for part in KINDS.values() for name in part.file_names}
    if other := sorted(names - known):
        raise OutputError(f"{directory} exists and holds more than a saved model ('{other[0]}'); give another name")
    if names and not is_saved_model(directory):
        raise OutputError(f"{directory} exists and is not a saved model; give another name")


def is_saved_model(directory: Path) -> bool:
    try:
        return read_json(directory / CONFIG).get("model_type") == MODEL_TYPE
    except CheckpointError:
        return False

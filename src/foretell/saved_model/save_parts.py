"""Write a saved model: each weight belongs to one part, and config.json describes every module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretell.errors import UsageError
from foretell.files import CONFIG, MODEL_TYPE, WEIGHTS, write_json
from foretell.model.decoder import Decoder
from foretell.model.init import empty_decoder
from foretell.model.kernels.dispatch import plain_form
from foretell.model.quantized_linear import quantize_decoder
from foretell.saved_model.decoder_part import DECODER, DecoderPart
from foretell.saved_model.part import Part, weight_key
from foretell.saved_model.quantization_part import QuantizationPart
from foretell.saved_model.tokenizer_part import TOKENIZER
from foretell.saved_model.weights_file import save_tensors

FORMAT, FORMAT_WITH_PARTS = 1, 2


def save_parts(directory: Path, parts: Mapping[str, Part], dtype: torch.dtype | None = None) -> None:
    """Write a saved model into an existing directory, weights in `dtype` if one is given; integers and scales stay."""
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

    Adapters are in the decoder's module tree: their weights are theirs, all others there the decoder's.
    """
    for part in parts.values():
        if isinstance(part, DecoderPart):
            check_described(part.decoder, parts)
    keyed: dict[str, Tensor] = {}
    inside = {
        key for part in parts.values() if part.is_inside_decoder and part.kind != DECODER for key in part.weights()
    }
    for name, part in parts.items():
        for path, weight in part.weights().items():
            if part.kind == DECODER and path in inside:
                continue
            key = weight_key(type(part), name, path)
            assert key not in keyed, f"two parts have a weight '{key}'; give the part '{name}' another name"
            keyed[key] = weight
    return keyed


def check_described(decoder: Decoder, parts: Mapping[str, Part]) -> None:
    """Refuse a decoder with a module that config.json does not describe: loading would make another model.

    Kernels are forms of the described modules. What a part inside the decoder has replaced is that part's to describe.
    """
    owned = {
        path.rpartition(".")[0]
        for part in parts.values()
        if not isinstance(part, DecoderPart)
        for path in part.weights()
    }
    empty = empty_decoder(decoder.config)
    for part in parts.values():
        if isinstance(part, QuantizationPart):
            quantize_decoder(empty, part.settings)
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
    """What config.json says: format 1 for a decoder and a tokenizer, else format 2."""
    if {name: part.kind for name, part in parts.items()} == {DECODER: DECODER, TOKENIZER: TOKENIZER}:
        return {"format": FORMAT, **parts[DECODER].config()}
    return {
        "format": FORMAT_WITH_PARTS,
        "parts": {name: {"kind": part.kind, **part.config()} for name, part in parts.items()},
    }

"""A `ModelConfig` as GGUF's key-value pairs, and back, by the architecture's table.

Llama 3.1's rope scaling has no keys in GGUF: llama.cpp reads a tensor with a factor for each frequency. The keys of
`KEPT` are ours, so that the reader of the proof can work the tensor out again from what it means.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from foretell.config import ModelConfig
from foretell.convert.family import Family
from foretell.convert.gguf.architectures import ARCHITECTURES, IMPLIED, for_heads
from foretell.convert.settings import read_settings, write_settings
from foretell.errors import CheckpointError
from foretell.textbook.family import frequency
from foretell.textbook.vectors import Vector

FREQUENCIES = "rope_freqs.weight"
BASE, TYPE, FACTOR = "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"
# theirs in a config.json -> our keys
KEPT = {
    "factor": "foretell.rope.factor",
    "low_freq_factor": "foretell.rope.low_frequency_factor",
    "high_freq_factor": "foretell.rope.high_frequency_factor",
    "original_max_position_embeddings": "foretell.rope.original_context_length",
}


def write_metadata(family: Family, config: ModelConfig) -> dict[str, Any]:
    """The pairs that describe the configuration, under their full keys."""
    values = write_settings(family, config)
    theta, scaling = values.pop("rope_theta", None), values.pop("rope_scaling", None)
    pairs = {f"{family.name}.{name}": value for name, value in values.items() if name not in IMPLIED}
    if theta is not None:
        pairs[f"{family.name}.{BASE}"] = float(theta)
    if scaling is not None and scaling["rope_type"] == "linear":
        pairs |= {f"{family.name}.{TYPE}": "linear", f"{family.name}.{FACTOR}": float(scaling["factor"])}
    elif scaling is not None:
        pairs |= {key: scaling[name] for name, key in KEPT.items()}
    return pairs


def read_metadata(pairs: Mapping[str, Any], tensors: Collection[str]) -> tuple[Family, ModelConfig]:
    """Architecture and configuration of a file with these pairs, which holds tensors of these names."""
    name = pairs.get("general.architecture")
    if name not in ARCHITECTURES:
        raise CheckpointError(f"architecture {name!r} is none of {', '.join(ARCHITECTURES)}")
    family = ARCHITECTURES[name]
    start = f"{name}."
    values = {key.removeprefix(start): value for key, value in pairs.items() if key.startswith(start)}
    values |= {field: (tensor in tensors) == meaning for field, (tensor, meaning) in IMPLIED.items()}
    known = {field: value for field, value in values.items() if field in family.fields}
    config, _ = read_settings(family, known | (rope_values(values, pairs) if family.is_rotary else {}))
    return for_heads(family, config), config


def rope_values(values: Mapping[str, Any], pairs: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a config.json would have for the file's rotary positions."""
    scaling = None
    if values.get(TYPE, "none") != "none":
        scaling = {"rope_type": values[TYPE], "factor": values[FACTOR]}
    elif KEPT["factor"] in pairs:
        scaling = {"rope_type": "llama3", **{name: pairs[key] for name, key in KEPT.items()}}
    return {"rope_theta": values[BASE], "rope_scaling": scaling}


def frequency_divisors(config: ModelConfig) -> Vector | None:
    """What llama.cpp divides each rotary frequency by (E/2), float32; None where Llama 3.1's scaling is not used."""
    if config.rope_scaling is None or config.rope_scaling.type != "llama3":
        return None
    plain = config.replaced(rope_scaling=None)
    pairs = range(config.head_width // 2)
    return np.array([frequency(plain, pair) / frequency(config, pair) for pair in pairs], dtype=np.float32)

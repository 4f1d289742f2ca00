"""The architectures shared with llama.cpp: its names of modules and fields, and a `ModelConfig` as key-value pairs.

Fields are listed without the prefix of the architecture's name. A new architecture is one declaration here, and its
entry in `ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from foretell.config import ModelConfig
from foretell.convert.config_json import read_settings, write_settings
from foretell.convert.families import GPT2, LLAMA, QWEN2, QWEN3, choose_family
from foretell.convert.family import Family, Field, Permute, Row, Split
from foretell.errors import CheckpointError, ConfigError
from foretell.textbook.family import frequency
from foretell.textbook.vectors import Vector

BLOCK = "trunk.blocks.*"
# Fields that are not written, since llama.cpp infers them: (the tensor that implies it, the value if it is present)
IMPLIED: Mapping[str, tuple[str, bool]] = {
    "tie_embeddings": ("output.weight", False),
    "attention_bias": ("blk.0.attn_q.bias", True),
    "feed_forward_bias": ("blk.0.ffn_up.bias", True),
}
SIZES = {
    "vocab_size": Field(("vocab_size",)),
    "context_length": Field(("context_length",)),
    "embedding_length": Field(("width",)),
    "block_count": Field(("num_layers",)),
    "feed_forward_length": Field(("feedforward_width",)),
    "attention.head_count": Field(("num_heads",)),
    "tie_embeddings": Field(("tie_embeddings",)),
}
ROTARY_SIZES = {
    **SIZES,
    "attention.head_count_kv": Field(("num_kv_heads",)),
    "attention.key_length": Field(("head_width",)),
    "attention.value_length": Field(("head_width",)),
    "rope.dimension_count": Field(("head_width",)),
    "attention.layer_norm_rms_epsilon": Field(("norm_epsilon",)),
}
ROWS = (
    Row("token_embd", ("embed.token",)),
    Row("output_norm", ("trunk.norm",)),
    Row("output", ("head",)),
    Row("blk.*.attn_norm", (f"{BLOCK}.attention_norm",)),
    Row("blk.*.attn_output", (f"{BLOCK}.attention.output",)),
    Row("blk.*.ffn_norm", (f"{BLOCK}.feedforward_norm",)),
    Row("blk.*.ffn_up", (f"{BLOCK}.feedforward.up",)),
    Row("blk.*.ffn_down", (f"{BLOCK}.feedforward.down",)),
)
QUERY, KEY = "blk.*.attn_q", "blk.*.attn_k"
ROTARY_ROWS = (
    *ROWS,
    Row("blk.*.attn_v", (f"{BLOCK}.attention.value",)),
    Row("blk.*.ffn_gate", (f"{BLOCK}.feedforward.gate",)),
    Row(QUERY, (f"{BLOCK}.attention.query",)),
    Row(KEY, (f"{BLOCK}.attention.key",)),
)
NORMED_ROWS = (
    *ROTARY_ROWS,
    Row("blk.*.attn_q_norm", (f"{BLOCK}.attention.query_norm",)),
    Row("blk.*.attn_k_norm", (f"{BLOCK}.attention.key_norm",)),
)
FUSED = tuple(f"{BLOCK}.attention.{name}" for name in ("query", "key", "value"))

GPT2_FILE = Family(
    name="gpt2",
    architecture="GGUF",
    prefix="",
    rows=(*ROWS, Row("position_embd", ("embed.position",)), Row("blk.*.attn_qkv", FUSED, (Split(),))),
    fields={**SIZES, "attention.layer_norm_epsilon": Field(("norm_epsilon",))},
    shared={**GPT2.shared, "activation": "gelu_tanh"},
)
QWEN2_FILE = Family(
    name="qwen2",
    architecture="GGUF",
    prefix="",
    rows=ROTARY_ROWS,
    fields=ROTARY_SIZES,
    shared={**QWEN2.shared, "activation": "silu"},
    is_rotary=True,
)
QWEN3_FILE = replace(QWEN2_FILE, name="qwen3", rows=NORMED_ROWS, shared={**QWEN3.shared, "activation": "silu"})
LLAMA_FILE = replace(
    QWEN2_FILE,
    name="llama",
    fields={
        **ROTARY_SIZES,
        "attention_bias": Field(("bias.attention", "bias.attention_output"), False),
        "feed_forward_bias": Field(("bias.feedforward",), False),
    },
    shared={**LLAMA.shared, "activation": "silu"},
)
ARCHITECTURES = {family.name: family for family in (GPT2_FILE, LLAMA_FILE, QWEN2_FILE, QWEN3_FILE)}
INTERLEAVED = ("llama",)  # llama.cpp rotates pairs (2i, 2i+1) of queries and keys
STRETCHED = ("llama",)  # llama.cpp reads a factor for each rotary frequency
SQUARE = ("qwen2",)  # llama.cpp reads query and output matrices of (width, width)
BASE, TYPE, FACTOR = "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"
# Llama 3.1's rope scaling has no keys in GGUF: llama.cpp reads a tensor with a factor for each frequency.
FREQUENCIES = "rope_freqs.weight"
# Name in a config.json -> our key, from which the parity check recomputes the tensor
SCALING_KEYS = {
    "factor": "foretell.rope.factor",
    "low_freq_factor": "foretell.rope.low_frequency_factor",
    "high_freq_factor": "foretell.rope.high_frequency_factor",
    "original_max_position_embeddings": "foretell.rope.original_context_length",
}


def choose_architecture(config: ModelConfig, name: str | None = None) -> Family:
    """The named architecture, or the first that can express the configuration; a `ConfigError` if none can."""
    try:
        family = choose_family(config, name, ARCHITECTURES)
    except ConfigError as error:
        raise ConfigError(f"GGUF: {error}") from None
    if family.name in SQUARE and config.num_heads * config.head_width != config.width:
        raise ConfigError(
            f"GGUF: {family.name} cannot express head_width = {config.head_width}; llama.cpp reads heads of "
            "width / num_heads there"
        )
    scaling = config.rope_scaling
    if scaling is not None and scaling.type == "llama3" and family.name not in STRETCHED:
        raise ConfigError(
            f"GGUF: {family.name} cannot express rope_scaling of type 'llama3'; llama.cpp does not read it there"
        )
    return for_heads(family, config)


def for_heads(family: Family, config: ModelConfig) -> Family:
    """The declaration with queries and keys permuted, if the architecture is in INTERLEAVED."""
    if family.name not in INTERLEAVED:
        return family
    permute = Permute(config.head_width)
    rows = (replace(row, transforms=(permute,)) if row.theirs in (QUERY, KEY) else row for row in family.rows)
    return replace(family, rows=tuple(rows))


# --- key-value pairs -------------------------------------------------------------------------------------------------


def write_metadata(family: Family, config: ModelConfig) -> dict[str, Any]:
    """The key-value pairs that describe the configuration, with full keys."""
    values = write_settings(family, config)
    theta, scaling = values.pop("rope_theta", None), values.pop("rope_scaling", None)
    pairs = {f"{family.name}.{name}": value for name, value in values.items() if name not in IMPLIED}
    if theta is not None:
        pairs[f"{family.name}.{BASE}"] = float(theta)
    if scaling is not None and scaling["rope_type"] == "linear":
        pairs |= {f"{family.name}.{TYPE}": "linear", f"{family.name}.{FACTOR}": float(scaling["factor"])}
    elif scaling is not None:
        pairs |= {key: scaling[name] for name, key in SCALING_KEYS.items()}
    return pairs


def read_metadata(pairs: Mapping[str, Any], tensors: Collection[str]) -> tuple[Family, ModelConfig]:
    """Architecture and configuration of a file, from its pairs and the names of its tensors."""
    name = pairs.get("general.architecture")
    if name not in ARCHITECTURES:
        raise CheckpointError(f"architecture {name!r} is not supported; known: {', '.join(ARCHITECTURES)}")
    family = ARCHITECTURES[name]
    prefix = f"{name}."
    values = {key.removeprefix(prefix): value for key, value in pairs.items() if key.startswith(prefix)}
    values |= {field: (tensor in tensors) == value for field, (tensor, value) in IMPLIED.items()}
    known = {field: value for field, value in values.items() if field in family.fields}
    config, _ = read_settings(family, known | (rope_values(values, pairs) if family.is_rotary else {}))
    return for_heads(family, config), config


def rope_values(values: Mapping[str, Any], pairs: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary fields of the file, spelled as in a config.json."""
    scaling = None
    if values.get(TYPE, "none") != "none":
        scaling = {"rope_type": values[TYPE], "factor": values[FACTOR]}
    elif SCALING_KEYS["factor"] in pairs:
        scaling = {"rope_type": "llama3", **{name: pairs[key] for name, key in SCALING_KEYS.items()}}
    return {"rope_theta": values[BASE], "rope_scaling": scaling}


def frequency_divisors(config: ModelConfig) -> Vector | None:
    """The divisor of each rotary frequency for llama.cpp (E/2), float32; None without Llama 3.1's scaling."""
    if config.rope_scaling is None or config.rope_scaling.type != "llama3":
        return None
    plain = config.replaced(rope_scaling=None)
    pairs = range(config.head_width // 2)
    return np.array([frequency(plain, pair) / frequency(config, pair) for pair in pairs], dtype=np.float32)

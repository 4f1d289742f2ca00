"""The key-value pairs of a GGUF file that describe a `ModelConfig`, read and written.

Fields are listed without the prefix of the architecture's name. A new architecture is one declaration here, and its
entry in `ARCHITECTURES`, or in `READABLE` if it is not written. Absent fields have llama.cpp's defaults.
"""

from __future__ import annotations

import math
import statistics
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from foretell.config.model import ModelConfig
from foretell.config.rotary import frequency
from foretell.convert.config_json import SHARE, read_settings, write_settings
from foretell.convert.families import (
    BLOCK,
    GEMMA3,
    GPT2,
    LLAMA,
    OLMO2,
    PHI3,
    QKV,
    QWEN2,
    QWEN3,
    choose_family,
    describe_unknown,
)
from foretell.convert.family import (
    AddOne,
    Family,
    Field,
    LayerWindows,
    Permute,
    PermuteRotated,
    Rope,
    Row,
    Split,
)
from foretell.convert.gguf.header import ARCHITECTURE
from foretell.errors import ConfigError
from foretell.storage.safetensors_header import StoredTensor

# Fields that are not written, because llama.cpp infers them: (the tensor that implies it, the value if it is present)
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
GATED_ROWS = (
    *ROWS,
    Row("blk.*.attn_v", (f"{BLOCK}.attention.value",)),
    Row("blk.*.ffn_gate", (f"{BLOCK}.feedforward.gate",)),
)
ROTARY_ROWS = (
    *GATED_ROWS,
    Row("blk.*.attn_q", (f"{BLOCK}.attention.query",)),
    Row("blk.*.attn_k", (f"{BLOCK}.attention.key",)),
)
LLAMA_ROWS = (  # llama.cpp rotates pairs (2i, 2i+1) here
    *GATED_ROWS,
    Row("blk.*.attn_q", (f"{BLOCK}.attention.query",), (Permute(),)),
    Row("blk.*.attn_k", (f"{BLOCK}.attention.key",), (Permute(),)),
)
NORMED_ROWS = (
    *ROTARY_ROWS,
    Row("blk.*.attn_q_norm", (f"{BLOCK}.attention.query_norm",)),
    Row("blk.*.attn_k_norm", (f"{BLOCK}.attention.key_norm",)),
)
UPDATE_NORMS = (
    Row("blk.*.post_attention_norm", (f"{BLOCK}.attention_update_norm",)),
    Row("blk.*.post_ffw_norm", (f"{BLOCK}.feedforward_update_norm",)),
)

GPT2_FILE = Family(
    name="gpt2",
    architecture="GGUF",
    prefix="",
    rows=(*ROWS, Row("position_embd", ("embed.position",)), Row("blk.*.attn_qkv", QKV, (Split(),))),
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
    rope=Rope(),
)
QWEN3_FILE = replace(QWEN2_FILE, name="qwen3", rows=NORMED_ROWS, shared={**QWEN3.shared, "activation": "silu"})
LLAMA_FILE = replace(
    QWEN2_FILE,
    name="llama",
    rows=LLAMA_ROWS,
    fields={
        **ROTARY_SIZES,
        "attention_bias": Field(("bias.attention", "bias.attention_output"), False),
        "feed_forward_bias": Field(("bias.feedforward",), False),
    },
    shared={**LLAMA.shared, "activation": "silu"},
)
OLMO2_FILE = replace(
    QWEN2_FILE,
    name="olmo2",
    rows=(*(row for row in NORMED_ROWS if row.theirs not in ("blk.*.attn_norm", "blk.*.ffn_norm")), *UPDATE_NORMS),
    shared={**OLMO2.shared, "activation": "silu"},
    fixed={"attention.sliding_window": (None, 0)},  # OLMo 3
)
GEMMA3_FILE = replace(
    QWEN2_FILE,
    name="gemma3",
    rows=tuple(
        replace(row, transforms=(AddOne(),)) if row.theirs.endswith("_norm") else row
        for row in (*NORMED_ROWS, *UPDATE_NORMS)
    ),
    shared={**GEMMA3.shared, "activation": "gelu_tanh"},
    fixed={"attn_logit_softcapping": (None,), "final_logit_softcapping": (None,)},
    rope=Rope(scalings=("default", "linear"), local_theta="rope.freq_base_swa"),
    windows=LayerWindows("attention.sliding_window", None, "attention.sliding_window_pattern", None),
)
WRITTEN = (GPT2_FILE, LLAMA_FILE, QWEN2_FILE, QWEN3_FILE, OLMO2_FILE, GEMMA3_FILE)
ARCHITECTURES = {family.name: family for family in WRITTEN}
PHI3_FILE = replace(
    QWEN2_FILE,
    name="phi3",
    rows=(
        *ROWS[:-2],
        Row("blk.*.attn_qkv", QKV, (Split(), PermuteRotated())),
        Row("blk.*.ffn_up", (f"{BLOCK}.feedforward.gate", f"{BLOCK}.feedforward.up"), (Split(),)),
        Row("blk.*.ffn_down", (f"{BLOCK}.feedforward.down",)),
    ),
    fields={
        **{name: field for name, field in ROTARY_SIZES.items() if name != "rope.dimension_count"},
        "attention.sliding_window": Field(("window",), None),
    },
    shared={**PHI3.shared, "activation": "silu"},
    rope=Rope(share=SHARE, scalings=("default", "linear")),
)
READABLE = {**ARCHITECTURES, "phi3": PHI3_FILE}
# Fields that do not affect the logits; a field that is neither here nor in the declaration is noted
HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout")
STRETCHED = ("llama",)  # for these, llama.cpp reads a factor for each rotary frequency
SQUARE = ("qwen2", "olmo2")  # for these, llama.cpp requires query and output matrices of (width, width)
BASE, TYPE, FACTOR = "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"
OLD_FACTOR = "rope.scale_linear"
ROPE_FIELDS = (BASE, TYPE, FACTOR, OLD_FACTOR, "rope.dimension_count")
DEFAULT_THETA = 10_000.0
GEMMA_27B = 62  # layers
EMBEDDING = "token_embd.weight"
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
    return family


def write_metadata(family: Family, config: ModelConfig) -> dict[str, Any]:
    """The key-value pairs that describe the configuration, with full keys."""
    values = write_settings(family, config)
    theta, scaling = values.pop("rope_theta", None), values.pop("rope_scaling", None)
    given = {name: value for name, value in values.items() if name not in IMPLIED and value is not None}
    pairs = {f"{family.name}.{name}": value for name, value in given.items()}
    if theta is not None:
        pairs[f"{family.name}.{BASE}"] = float(theta)
    if scaling is not None and scaling["rope_type"] == "linear":
        pairs |= {f"{family.name}.{TYPE}": "linear", f"{family.name}.{FACTOR}": float(scaling["factor"])}
    elif scaling is not None:
        pairs |= {key: scaling[name] for name, key in SCALING_KEYS.items()}
    return pairs


def read_metadata(
    pairs: Mapping[str, Any], tensors: Mapping[str, StoredTensor], divisors: Sequence[float] | None
) -> tuple[Family, ModelConfig, list[str]]:
    """Architecture and configuration of a file, and notes on unused fields. divisors: of the rotary frequencies.

    Raises ConfigError, with the name, for an unknown architecture and for a field that cannot be expressed.
    """
    name = pairs.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in READABLE:
        raise ConfigError(
            f"its architecture is {str(name)[:40]!r}, which foretell cannot read{describe_unknown(name, READABLE)}"
        )
    family, prefix = READABLE[name], f"{name}."
    given = {key.removeprefix(prefix): decimal(value) for key, value in pairs.items() if key.startswith(prefix)}
    values = {**defaults(given, tensors), **given}
    if values["attention.key_length"] != values["attention.value_length"]:
        raise ConfigError("attention.key_length and attention.value_length differ")
    if family.rope is not None:
        values |= rope_values(family, values, pairs)
    config, _ = read_settings(family, {name: value for name, value in values.items() if is_read(family, name)})
    if (family.name, config.num_layers) == ("gemma3", GEMMA_27B):  # llama.cpp has this exception without a field
        config = config.replaced(query_pre_attn_scalar=config.width // config.num_heads)
    if divisors is not None and config.rope_scaling is None and config.position == "rotary":
        config = config.replaced(rope_scaling=llama3_scaling(config, divisors))
    check_divisors(config, divisors)
    unknown = [key for key in given if not is_read(family, key) and key not in (*ROPE_FIELDS, *HARMLESS)]
    return family, config, [f"{prefix}{key} = {str(given[key])[:40]} is unknown and was not used" for key in unknown]


def decimal(value: Any) -> Any:
    """The shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06; other values as they are."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    candidates = (float(f"{value:.{digits}g}") for digits in range(6, 10))  # 9 digits determine a float32
    return next((each for each in candidates if to_float32(each) == to_float32(value)), value)


def to_float32(value: float) -> float:
    """The nearest float32; infinite beyond the largest."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def is_read(family: Family, name: str) -> bool:
    rope, windows = family.rope, family.windows
    of_rope = () if rope is None else (rope.theta, rope.share, "rope_scaling", rope.local_theta)
    of_windows = () if windows is None else (windows.size, windows.period)
    return name in family.fields or name in (*family.fixed, *of_rope, *of_windows)


def defaults(given: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """llama.cpp's values of absent fields, and the values that follow from the tensors."""
    embedding, width, heads = (tensors.get(EMBEDDING), given.get("embedding_length"), given.get("attention.head_count"))
    are_sizes = type(width) is type(heads) is int and heads
    head_width = given.get("attention.key_length", width // heads if are_sizes else None)
    return {
        **({} if embedding is None else {"vocab_size": embedding.shape[0]}),
        "attention.head_count_kv": heads,
        "attention.key_length": head_width,
        "attention.value_length": head_width,
        "rope.dimension_count": head_width,
        BASE: DEFAULT_THETA,
        **{field: (tensor in tensors) == value for field, (tensor, value) in IMPLIED.items()},
    }


def rope_values(family: Family, values: Mapping[str, Any], pairs: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary fields of the file, as in a config.json."""
    kind, factor, scaling = values.get(TYPE, "linear"), values.get(FACTOR, values.get(OLD_FACTOR, 0)), None
    if SCALING_KEYS["factor"] in pairs:
        scaling = {"rope_type": "llama3", **{name: pairs.get(key) for name, key in SCALING_KEYS.items()}}
    elif kind not in ("none", "linear") or factor not in (0, 1):
        scaling = {"rope_type": kind, "factor": factor} if kind != "none" else None
    rotated, head_width = values["rope.dimension_count"], values["attention.key_length"]
    if family.rope is not None and family.rope.share is not None and head_width:
        return {"rope_theta": values[BASE], "rope_scaling": scaling, family.rope.share: rotated / head_width}
    if rotated != head_width:
        raise ConfigError(f"rope.dimension_count = {rotated} is not supported for heads of {head_width}")
    return {"rope_theta": values[BASE], "rope_scaling": scaling}


def llama3_scaling(config: ModelConfig, divisors: Sequence[float]) -> dict[str, Any]:
    """The scaling that has these divisors of the rotary frequencies; a `ConfigError` if there is none.

    Between the two cut-offs, 1 / divisor is 1 / factor + (1 - 1 / factor) smooth, and `smooth` is linear in the
    frequency. The three other parameters determine this line; the low frequency factor is 1 in all published models.
    """
    pairs, factor = range(config.rotary_width // 2), max(divisors, default=0.0)
    if len(divisors) != len(pairs) or not 1 < factor < 1e6:
        raise ConfigError(f"'{FREQUENCIES}' does not have {len(pairs)} divisors of frequencies")
    cycles = [frequency(config, pair) / (2 * math.pi) for pair in pairs]  # per position
    smooth = [(1 / divisor - 1 / factor) / (1 - 1 / factor) if divisor else 0.0 for divisor in divisors]
    between = [(x, y) for x, y in zip(cycles, smooth, strict=True) if 1e-6 < y < 1 - 1e-6]
    if len(between) >= 2:
        slope, intercept = statistics.linear_regression(*zip(*between, strict=True))
        if slope > 0 > intercept:
            return {  # `check_divisors` compares all divisors
                "type": "llama3",
                "factor": float(f"{factor:.6g}"),
                "low_frequency_factor": 1.0,
                "high_frequency_factor": float(f"{1 - 1 / intercept:.4g}"),
                "original_context_length": round(-slope / intercept),
            }
    raise ConfigError(f"'{FREQUENCIES}' is not the scaling of Llama 3.1, the only one that is read")


def check_divisors(config: ModelConfig, divisors: Sequence[float] | None) -> None:
    """Refuse divisors of the rotary frequencies that do not agree with the scaling."""
    expected = frequency_divisors(config)
    if expected is None and divisors is None:
        return
    if expected is None or divisors is None or len(divisors) != len(expected):
        raise ConfigError(f"'{FREQUENCIES}' does not belong to the scaling of the rotary frequencies")
    if not all(map(partial(math.isclose, rel_tol=1e-5), expected, divisors)):
        raise ConfigError(f"'{FREQUENCIES}' is wrong: Llama 3.1's scaling has other divisors")


def frequency_divisors(config: ModelConfig) -> list[float] | None:
    """The divisor of each rotary frequency for llama.cpp, E/2 of them; None without Llama 3.1's scaling."""
    if config.rope_scaling is None or config.rope_scaling.type != "llama3":
        return None
    plain = config.replaced(rope_scaling=None)
    pairs = range(config.head_width // 2)
    return [frequency(plain, pair) / frequency(config, pair) for pair in pairs]

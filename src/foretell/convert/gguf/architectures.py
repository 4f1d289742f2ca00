"""What llama.cpp calls the modules and fields of the architectures that it shares with us.

Fields stand here without the architecture's name before them. Those in `IMPLIED` are not written: llama.cpp sees them
by the tensors that are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from foretell.config import ModelConfig
from foretell.convert.families import choose_family
from foretell.convert.family import Family, Field, Row
from foretell.convert.gpt2 import GPT2
from foretell.convert.llama import LLAMA
from foretell.convert.qwen import QWEN3
from foretell.convert.transforms import Permute, Split
from foretell.errors import ConfigError

BLOCK = "trunk.blocks.*"
EPSILON = "attention.layer_norm_epsilon"
RMS_EPSILON = "attention.layer_norm_rms_epsilon"
# field: (the tensor that tells, what its presence means)
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
    RMS_EPSILON: Field(("norm_epsilon",)),
}
QUERY = Row("blk.*.attn_q", (f"{BLOCK}.attention.query",))
KEY = Row("blk.*.attn_k", (f"{BLOCK}.attention.key",))
ENDS = (Row("token_embd", ("embed.token",)), Row("output_norm", ("trunk.norm",)), Row("output", ("head",)))
SHARED_ROWS = (
    *ENDS,
    Row("blk.*.attn_norm", (f"{BLOCK}.attention_norm",)),
    Row("blk.*.attn_output", (f"{BLOCK}.attention.output",)),
    Row("blk.*.ffn_norm", (f"{BLOCK}.feedforward_norm",)),
    Row("blk.*.ffn_up", (f"{BLOCK}.feedforward.up",)),
    Row("blk.*.ffn_down", (f"{BLOCK}.feedforward.down",)),
)
ROTARY_ROWS = (
    *SHARED_ROWS,
    Row("blk.*.attn_v", (f"{BLOCK}.attention.value",)),
    Row("blk.*.ffn_gate", (f"{BLOCK}.feedforward.gate",)),
)
FUSED = tuple(f"{BLOCK}.attention.{name}" for name in ("query", "key", "value"))

GPT2_FILE = Family(
    name="gpt2",
    architecture="GGUF",
    prefix="",
    rows=(
        *SHARED_ROWS,
        Row("position_embd", ("embed.position",)),
        Row("blk.*.attn_qkv", FUSED, (Split(),)),
    ),
    fields={**SIZES, EPSILON: Field(("norm_epsilon",))},
    shared={**GPT2.shared, "activation": "gelu_tanh"},
)
LLAMA_FILE = Family(
    name="llama",
    architecture="GGUF",
    prefix="",
    rows=(*ROTARY_ROWS, QUERY, KEY),  # with the permutation of `for_heads`
    fields={
        **ROTARY_SIZES,
        "attention_bias": Field(("bias.attention", "bias.attention_output"), False),
        "feed_forward_bias": Field(("bias.feedforward",), False),
    },
    shared={**LLAMA.shared, "activation": "silu"},
    is_rotary=True,
)
QWEN3_FILE = Family(
    name="qwen3",
    architecture="GGUF",
    prefix="",
    rows=(
        *ROTARY_ROWS,
        QUERY,
        KEY,
        Row("blk.*.attn_q_norm", (f"{BLOCK}.attention.query_norm",)),
        Row("blk.*.attn_k_norm", (f"{BLOCK}.attention.key_norm",)),
    ),
    fields=ROTARY_SIZES,
    shared={**QWEN3.shared, "activation": "silu"},
    is_rotary=True,
)
ARCHITECTURES = {one.name: one for one in (GPT2_FILE, LLAMA_FILE, QWEN3_FILE)}
NEIGHBOURS = ("llama",)  # whose queries and keys llama.cpp rotates in pairs of neighbours
STRETCHED = ("llama",)  # for which llama.cpp reads a factor for each rotary frequency


def choose_architecture(config: ModelConfig, name: str | None = None) -> Family:
    """The named architecture, or the first that can express the configuration (`ConfigError` where none can)."""
    try:
        family = choose_family(config, name, ARCHITECTURES)
    except ConfigError as error:
        raise ConfigError(f"GGUF: {error}") from None
    scaling = config.rope_scaling
    if scaling is not None and scaling.type == "llama3" and family.name not in STRETCHED:
        raise ConfigError(
            f"GGUF: {family.name} cannot express rope_scaling of type 'llama3'; llama.cpp reads none there"
        )
    return for_heads(family, config)


def for_heads(family: Family, config: ModelConfig) -> Family:
    """The table with queries and keys permuted, where neighbours are rotated."""
    if family.name not in NEIGHBOURS:
        return family
    permuted = tuple(
        replace(row, transforms=(Permute(config.head_width),)) if row in (QUERY, KEY) else row for row in family.rows
    )
    return replace(family, rows=permuted)

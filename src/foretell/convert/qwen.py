"""Qwen2 (and 2.5): Llama with biases on query, key and value. Qwen3: none, but norms on queries and keys."""

from __future__ import annotations

from foretell.convert.family import Family, Field, Row, names
from foretell.convert.llama import BLOCK, BUFFERS, ROWS, SHARED
from foretell.convert.llama import SIZES as LLAMA_SIZES

SIZES = {**LLAMA_SIZES, "num_key_value_heads": Field(("num_kv_heads",), 32)}
FULL = "full_attention"  # the only entry of layer_types that is understood
FIXED = {"use_sliding_window": (False, None), "layer_types": (None, [FULL])}
HARMLESS = names("sliding_window max_window_layers")  # without use_sliding_window they say nothing

QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    prefix="model.",
    rows=ROWS,
    fields=SIZES,
    tokenizer_class="Qwen2Tokenizer",
    shared={**SHARED, "bias": {"attention": True, "attention_output": False, "feedforward": False, "norm": False}},
    fixed=FIXED,
    harmless=HARMLESS,
    buffers=BUFFERS,
    is_rotary=True,
)
QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    prefix="model.",
    rows=(
        *ROWS,
        Row("model.layers.*.self_attn.q_norm", (f"{BLOCK}.attention.query_norm",)),
        Row("model.layers.*.self_attn.k_norm", (f"{BLOCK}.attention.key_norm",)),
    ),
    fields={
        **SIZES,
        "head_dim": Field(("head_width",), 128),
        "attention_bias": Field(("bias.attention", "bias.attention_output"), False),
    },
    shared={**SHARED, "qk_norm": True},
    fixed=FIXED,
    harmless=HARMLESS,
    buffers=BUFFERS,
    is_rotary=True,
)

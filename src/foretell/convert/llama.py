"""The Llama families in Hugging Face's format: Llama 1 to 3 and SmolLM, Mistral, Qwen2 (and 2.5), Qwen3.

Mistral adds a window, Qwen2 biases on query, key and value, Qwen3 norms on queries and keys.
"""

from __future__ import annotations

from foretell.activations import TRANSFORMERS_NAMES
from foretell.convert.family import Family, Field, Row, names

BLOCK = "trunk.blocks.*"
ROWS = (
    Row("model.embed_tokens", ("embed.token",)),
    Row("model.layers.*.input_layernorm", (f"{BLOCK}.attention_norm",)),
    Row("model.layers.*.self_attn.q_proj", (f"{BLOCK}.attention.query",)),
    Row("model.layers.*.self_attn.k_proj", (f"{BLOCK}.attention.key",)),
    Row("model.layers.*.self_attn.v_proj", (f"{BLOCK}.attention.value",)),
    Row("model.layers.*.self_attn.o_proj", (f"{BLOCK}.attention.output",)),
    Row("model.layers.*.post_attention_layernorm", (f"{BLOCK}.feedforward_norm",)),
    Row("model.layers.*.mlp.gate_proj", (f"{BLOCK}.feedforward.gate",)),
    Row("model.layers.*.mlp.up_proj", (f"{BLOCK}.feedforward.up",)),
    Row("model.layers.*.mlp.down_proj", (f"{BLOCK}.feedforward.down",)),
    Row("model.norm", ("trunk.norm",)),
    Row("lm_head", ("head",)),
)
SIZES = {
    "vocab_size": Field(("vocab_size",)),
    "max_position_embeddings": Field(("context_length",)),
    "hidden_size": Field(("width",)),
    "intermediate_size": Field(("feedforward_width",)),
    "num_hidden_layers": Field(("num_layers",)),
    "num_attention_heads": Field(("num_heads",)),
    "num_key_value_heads": Field(("num_kv_heads",), None),
    "head_dim": Field(("head_width",), None),
    "rms_norm_eps": Field(("norm_epsilon",), 1e-6),
    "hidden_act": Field(("activation",), "silu", {"silu": "silu", **TRANSFORMERS_NAMES}),
    "tie_word_embeddings": Field(("tie_embeddings",), False),
    "attention_dropout": Field(("dropout.attention",), 0.0),
}
SHARED = {"position": "rotary", "norm": "rmsnorm", "norm_placement": "pre", "feedforward": "gated", "bias": False}
BUFFERS = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")

LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    rows=ROWS,
    fields={
        **SIZES,
        "attention_bias": Field(("bias.attention", "bias.attention_output"), False),
        "mlp_bias": Field(("bias.feedforward",), False),
    },
    shared=SHARED,
    fixed={"sliding_window": (None,), "layer_types": (None,)},
    harmless=names("pretraining_tp"),
    buffers=BUFFERS,
    is_rotary=True,
    splits_width=True,
)
MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    prefix="model.",
    rows=ROWS,
    fields={
        **SIZES,
        "num_key_value_heads": Field(("num_kv_heads",), 8),
        "sliding_window": Field(("window",), 4096),
    },
    shared=SHARED,
    fixed={"layer_types": (None,)},
    buffers=BUFFERS,
    is_rotary=True,
)
QWEN_SIZES = {**SIZES, "num_key_value_heads": Field(("num_kv_heads",), 32)}
QWEN_FIXED = {"use_sliding_window": (False, None), "layer_types": (None, ["full_attention"])}
QWEN_HARMLESS = names("sliding_window max_window_layers")  # ignored by transformers unless use_sliding_window is set

QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    prefix="model.",
    rows=ROWS,
    fields=QWEN_SIZES,
    tokenizer_class="Qwen2Tokenizer",
    shared={**SHARED, "bias": {"attention": True, "attention_output": False, "feedforward": False, "norm": False}},
    fixed=QWEN_FIXED,
    harmless=QWEN_HARMLESS,
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
        **QWEN_SIZES,
        "head_dim": Field(("head_width",), 128),
        "attention_bias": Field(("bias.attention", "bias.attention_output"), False),
    },
    shared={**SHARED, "qk_norm": True},
    fixed=QWEN_FIXED,
    harmless=QWEN_HARMLESS,
    buffers=BUFFERS,
    is_rotary=True,
)

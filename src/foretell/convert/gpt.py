"""GPT-1 and GPT-2 in Hugging Face's format: Conv1D matrices (inputs, outputs), fused query, key and value, tied head.

GPT-1 differs in the norm after each sublayer, the missing final norm and the meaning of "gelu".
"""

from __future__ import annotations

from foretell.activations import TRANSFORMERS_NAMES
from foretell.convert.family import Family, Field, Row, Split, Transpose, names

BLOCK = "trunk.blocks.*"
BLOCK_ROWS = (
    Row("transformer.h.*.ln_1", (f"{BLOCK}.attention_norm",)),
    Row(
        "transformer.h.*.attn.c_attn",
        (f"{BLOCK}.attention.query", f"{BLOCK}.attention.key", f"{BLOCK}.attention.value"),
        (Transpose(), Split()),
    ),
    Row("transformer.h.*.attn.c_proj", (f"{BLOCK}.attention.output",), (Transpose(),)),
    Row("transformer.h.*.ln_2", (f"{BLOCK}.feedforward_norm",)),
    Row("transformer.h.*.mlp.c_fc", (f"{BLOCK}.feedforward.up",), (Transpose(),)),
    Row("transformer.h.*.mlp.c_proj", (f"{BLOCK}.feedforward.down",), (Transpose(),)),
)
SIZES = {
    "vocab_size": Field(("vocab_size",)),
    "n_positions": Field(("context_length",)),
    "n_embd": Field(("width",)),
    "n_layer": Field(("num_layers",)),
    "n_head": Field(("num_heads",)),
    "layer_norm_epsilon": Field(("norm_epsilon",), 1e-5),
    "tie_word_embeddings": Field(("tie_embeddings",), True),
    "embd_pdrop": Field(("dropout.embedding",), 0.1),
    "attn_pdrop": Field(("dropout.attention",), 0.1),
    "resid_pdrop": Field(("dropout.residual",), 0.1),
}
SUMMARY = names("n_ctx summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout")
GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    rows=(
        Row("transformer.wte", ("embed.token",)),
        Row("transformer.wpe", ("embed.position",)),
        *BLOCK_ROWS,
        Row("transformer.ln_f", ("trunk.norm",)),
        Row("lm_head", ("head",)),
    ),
    fields={
        **SIZES,
        "n_inner": Field(("feedforward_width",), None),
        "activation_function": Field(("activation",), "gelu_new", TRANSFORMERS_NAMES),
    },
    shared={
        "position": "learned",
        "norm": "layernorm",
        "norm_placement": "pre",
        "feedforward": "mlp",
        "bias": True,
    },
    # scaling scores by 1 / (layer + 1) could be folded into the query's weights, but not unfolded bit-identically
    fixed={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False, None)},
    noted={"reorder_and_upcast_attn": "the fused kernel computes scores in float32 in any precision"},
    harmless=SUMMARY,
    buffers=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),  # the causal mask
)
GPT1 = Family(
    name="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    prefix="transformer.",
    rows=(
        Row("transformer.tokens_embed", ("embed.token",)),
        Row("transformer.positions_embed", ("embed.position",)),
        *BLOCK_ROWS,
        Row("lm_head", ("head",)),
    ),
    # "gelu" means the tanh form here, unlike in GPT-2; the feed-forward width is always four times the width
    fields={
        **SIZES,
        "afn": Field(("activation",), "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
    },
    shared={**GPT2.shared, "norm_placement": "post"},
    harmless=SUMMARY,
    buffers=("transformer.h.*.attn.bias", "transformer.position_ids"),
)

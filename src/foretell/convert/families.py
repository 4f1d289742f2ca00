"""The model families that can be read and written, and the choice of a family for a model.

A new family is one declaration here, and its entry in `FAMILIES`. GPT-1 and GPT-2 have Conv1D matrices (inputs,
outputs), a fused query, key and value, and a tied head. GPT-1 differs in the norm after each sublayer, the missing
final norm and the meaning of "gelu". Llama 1 to 3 and SmolLM share one table; Mistral adds a window, Qwen2 (and 2.5)
biases on query, key and value, Qwen3 norms on queries and keys. OLMo 2 normalises updates, and all heads together.
Gemma 3 has norms before and after each sublayer, windows in most layers, with another rotation, and scaled
embeddings. Phi-3 has the same block in fewer matrices. In GPT-NeoX
(Pythia), Phi and StableLM, positions rotate a part of each head; the feed-forward layer may run in parallel with
attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from foretell.config.model import ModelConfig
from foretell.convert.config_json import SHARE, meaningful, read_settings, write_settings
from foretell.convert.family import (
    Family,
    Field,
    LayerWindows,
    PermuteRotated,
    Rope,
    Row,
    Split,
    SplitHeads,
    Transpose,
    names,
)
from foretell.errors import ConfigError, did_you_mean

BLOCK = "trunk.blocks.*"
QKV = tuple(f"{BLOCK}.attention.{name}" for name in ("query", "key", "value"))  # fused in some families
# transformers' name of an activation -> ours; if several map to one of ours, the first is written
ACTIVATION_WORDS = {
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"), "gelu_tanh"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu_erf"),
    "relu": "relu",
    "relu2": "relu2",
    **dict.fromkeys(("silu", "swish"), "silu"),
}


GPT_BLOCK = (
    Row("transformer.h.*.ln_1", (f"{BLOCK}.attention_norm",)),
    Row("transformer.h.*.attn.c_attn", QKV, (Transpose(), Split())),
    Row("transformer.h.*.attn.c_proj", (f"{BLOCK}.attention.output",), (Transpose(),)),
    Row("transformer.h.*.ln_2", (f"{BLOCK}.feedforward_norm",)),
    Row("transformer.h.*.mlp.c_fc", (f"{BLOCK}.feedforward.up",), (Transpose(),)),
    Row("transformer.h.*.mlp.c_proj", (f"{BLOCK}.feedforward.down",), (Transpose(),)),
)
GPT_FIELDS = {
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
        *GPT_BLOCK,
        Row("transformer.ln_f", ("trunk.norm",)),
        Row("lm_head", ("head",)),
    ),
    fields={
        **GPT_FIELDS,
        "n_inner": Field(("feedforward_width",), None),
        "activation_function": Field(("activation",), "gelu_new", ACTIVATION_WORDS),
    },
    shared={"position": "learned", "norm": "layernorm", "norm_placement": "pre", "feedforward": "mlp", "bias": True},
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
        *GPT_BLOCK,
        Row("lm_head", ("head",)),
    ),
    # "gelu" means the tanh form here, unlike in GPT-2; the feed-forward width is always four times the width
    fields={
        **GPT_FIELDS,
        "afn": Field(("activation",), "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
    },
    shared={**GPT2.shared, "norm_placement": "post"},
    harmless=SUMMARY,
    buffers=("transformer.h.*.attn.bias", "transformer.position_ids"),
)


LLAMA_ROWS = (
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
LLAMA_FIELDS = {
    "vocab_size": Field(("vocab_size",)),
    "max_position_embeddings": Field(("context_length",)),
    "hidden_size": Field(("width",)),
    "intermediate_size": Field(("feedforward_width",)),
    "num_hidden_layers": Field(("num_layers",)),
    "num_attention_heads": Field(("num_heads",)),
    "num_key_value_heads": Field(("num_kv_heads",), None),
    "head_dim": Field(("head_width",), None),
    "rms_norm_eps": Field(("norm_epsilon",), 1e-6),
    "hidden_act": Field(("activation",), "silu", {"silu": "silu", **ACTIVATION_WORDS}),
    "tie_word_embeddings": Field(("tie_embeddings",), False),
    "attention_dropout": Field(("dropout.attention",), 0.0),
}
ATTENTION_BIAS = Field(("bias.attention", "bias.attention_output"), False)
LLAMA_SHARED = {"position": "rotary", "norm": "rmsnorm", "norm_placement": "pre", "feedforward": "gated", "bias": False}
LLAMA_LIKE: dict[str, Any] = {
    "prefix": "model.",
    "buffers": ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
    "rope": Rope(),
}
LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    **LLAMA_LIKE,
    rows=LLAMA_ROWS,
    fields={**LLAMA_FIELDS, "attention_bias": ATTENTION_BIAS, "mlp_bias": Field(("bias.feedforward",), False)},
    shared=LLAMA_SHARED,
    fixed={"sliding_window": (None,), "layer_types": (None,)},
    harmless=names("pretraining_tp"),
    splits_width=True,
)
MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    **LLAMA_LIKE,
    rows=LLAMA_ROWS,
    fields={
        **LLAMA_FIELDS,
        "num_key_value_heads": Field(("num_kv_heads",), 8),
        "sliding_window": Field(("window",), 4096),
    },
    shared=LLAMA_SHARED,
    fixed={"layer_types": (None,)},
)
QWEN_LIKE: dict[str, Any] = {
    **LLAMA_LIKE,
    "fixed": {"use_sliding_window": (False, None), "layer_types": (None, ["full_attention"])},
    "harmless": names("sliding_window max_window_layers"),  # transformers ignores them unless use_sliding_window is set
}
QWEN_FIELDS = {**LLAMA_FIELDS, "num_key_value_heads": Field(("num_kv_heads",), 32)}
QWEN2_BIAS = {"attention": True, "attention_output": False, "feedforward": False, "norm": False}
QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    **QWEN_LIKE,
    rows=LLAMA_ROWS,
    fields=QWEN_FIELDS,
    shared={**LLAMA_SHARED, "bias": QWEN2_BIAS},
    tokenizer_class="Qwen2Tokenizer",
)
QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    **QWEN_LIKE,
    rows=(
        *LLAMA_ROWS,
        Row("model.layers.*.self_attn.q_norm", (f"{BLOCK}.attention.query_norm",)),
        Row("model.layers.*.self_attn.k_norm", (f"{BLOCK}.attention.key_norm",)),
    ),
    fields={**QWEN_FIELDS, "head_dim": Field(("head_width",), 128), "attention_bias": ATTENTION_BIAS},
    shared={**LLAMA_SHARED, "qk_norm": True},
)
UPDATE_NORMS = (
    Row("model.layers.*.post_attention_layernorm", (f"{BLOCK}.attention_update_norm",)),
    Row("model.layers.*.post_feedforward_layernorm", (f"{BLOCK}.feedforward_update_norm",)),
)
OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    **LLAMA_LIKE,
    rows=(*(row for row in QWEN3.rows if not row.theirs.endswith("layernorm")), *UPDATE_NORMS),
    fields={**LLAMA_FIELDS, "rms_norm_eps": Field(("norm_epsilon",), 1e-5), "attention_bias": ATTENTION_BIAS},
    shared={**LLAMA_SHARED, "norm_placement": "update", "qk_norm": True, "qk_norm_scope": "all_heads"},
)
GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    prefix="model.",
    buffers=("model.rotary_emb.*inv_freq",),
    rows=(
        *(row for row in QWEN3.rows if not row.theirs.endswith("post_attention_layernorm")),
        Row("model.layers.*.pre_feedforward_layernorm", (f"{BLOCK}.feedforward_norm",)),
        *UPDATE_NORMS,
    ),
    fields={
        **{name: field for name, field in LLAMA_FIELDS.items() if name != "hidden_act"},
        "num_key_value_heads": Field(("num_kv_heads",), 4),
        "head_dim": Field(("head_width",), 256),
        "query_pre_attn_scalar": Field(("query_pre_attn_scalar",), 256, follows="head_width"),
        "hidden_activation": Field(
            ("activation",), "gelu_pytorch_tanh", {"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATION_WORDS}
        ),
        "tie_word_embeddings": Field(("tie_embeddings",), True),
        "attention_bias": ATTENTION_BIAS,
    },
    shared={
        **LLAMA_SHARED,
        "norm": "rmsnorm_offset",
        "norm_placement": "sandwich",
        "qk_norm": True,
        "scale_embeddings": True,
    },
    fixed={"use_bidirectional_attention": (False, None)},
    harmless=names("cache_implementation _sliding_window_pattern"),
    rope=Rope(default_theta=1_000_000.0, local_theta="rope_local_base_freq"),
    windows=LayerWindows(),
    splits_width=True,
)

PARTLY_ROTATED: dict[str, Any] = {"prefix": "model.", "buffers": LLAMA_LIKE["buffers"], "splits_width": True}
ROTATED_FIRST = (PermuteRotated(),)
DROPOUT_FIELDS = {"embd_pdrop": Field(("dropout.embedding",), 0.0), "resid_pdrop": Field(("dropout.residual",), 0.0)}
PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    **PARTLY_ROTATED,
    rows=(
        *(row for row in LLAMA_ROWS if not row.theirs.endswith(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))),
        Row("model.layers.*.self_attn.qkv_proj", QKV, (Split(), *ROTATED_FIRST)),
        Row("model.layers.*.mlp.gate_up_proj", (f"{BLOCK}.feedforward.gate", f"{BLOCK}.feedforward.up"), (Split(),)),
    ),
    fields={
        **{name: field for name, field in LLAMA_FIELDS.items() if name != "head_dim"},
        "rms_norm_eps": Field(("norm_epsilon",), 1e-5),
        "sliding_window": Field(("window",), None),
        **DROPOUT_FIELDS,
    },
    shared=LLAMA_SHARED,
    fixed={"layer_types": (None,)},
    harmless=names("original_max_position_embeddings"),
    rope=Rope(share=SHARE, scalings=("default",)),
)
PARTLY_ROTATED_SHARED = {"position": "rotary", "norm": "layernorm", "norm_placement": "pre"}
LAYER_NORM_FIELDS = {
    **{name: LLAMA_FIELDS[name] for name in LLAMA_FIELDS if name not in ("head_dim", "rms_norm_eps")},
    "layer_norm_eps": Field(("norm_epsilon",), 1e-5),
}
PHI = Family(
    name="phi",
    architecture="PhiForCausalLM",
    **PARTLY_ROTATED,
    rows=(
        Row("model.embed_tokens", ("embed.token",)),
        Row("model.layers.*.input_layernorm", (f"{BLOCK}.attention_norm",)),
        Row("model.layers.*.self_attn.q_proj", (f"{BLOCK}.attention.query",), ROTATED_FIRST),
        Row("model.layers.*.self_attn.k_proj", (f"{BLOCK}.attention.key",), ROTATED_FIRST),
        Row("model.layers.*.self_attn.v_proj", (f"{BLOCK}.attention.value",)),
        Row("model.layers.*.self_attn.dense", (f"{BLOCK}.attention.output",)),
        Row("model.layers.*.mlp.fc1", (f"{BLOCK}.feedforward.up",)),
        Row("model.layers.*.mlp.fc2", (f"{BLOCK}.feedforward.down",)),
        Row("model.final_layernorm", ("trunk.norm",)),
        Row("lm_head", ("head",)),
    ),
    fields={**LAYER_NORM_FIELDS, "hidden_act": Field(("activation",), "gelu_new", ACTIVATION_WORDS), **DROPOUT_FIELDS},
    shared={
        **PARTLY_ROTATED_SHARED,
        "feedforward": "mlp",
        "residual": "parallel_shared_norm",
        "bias": dict.fromkeys(("attention", "attention_output", "feedforward", "norm", "head"), True),
    },
    fixed={"qk_layernorm": (False, None)},
    rope=Rope(share=SHARE, default_share=0.5),
)
STABLELM = Family(
    name="stablelm",
    architecture="StableLmForCausalLM",
    **PARTLY_ROTATED,
    rows=tuple(
        replace(row, transforms=ROTATED_FIRST) if row.theirs.endswith(("q_proj", "k_proj")) else row
        for row in LLAMA_ROWS
    ),
    fields={
        **LAYER_NORM_FIELDS,
        "num_key_value_heads": Field(("num_kv_heads",), 32),
        "use_qkv_bias": Field(("bias.attention",), False),
        "use_parallel_residual": Field(("residual",), False, {False: "sequential", True: "parallel_shared_norm"}),
        "hidden_dropout": Field(("dropout.residual",), 0.0),
    },
    shared={
        **PARTLY_ROTATED_SHARED,
        "feedforward": "gated",
        "bias": {"attention_output": False, "feedforward": False, "norm": True},
    },
    fixed={"qk_layernorm": (False, None)},
    rope=Rope(share=SHARE, default_share=0.25),
)
GPT_NEOX = Family(
    name="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    rows=(
        Row("gpt_neox.embed_in", ("embed.token",)),
        Row("gpt_neox.layers.*.input_layernorm", (f"{BLOCK}.attention_norm",)),
        Row("gpt_neox.layers.*.post_attention_layernorm", (f"{BLOCK}.feedforward_norm",)),
        Row("gpt_neox.layers.*.attention.query_key_value", QKV, (SplitHeads(), *ROTATED_FIRST)),
        Row("gpt_neox.layers.*.attention.dense", (f"{BLOCK}.attention.output",)),
        Row("gpt_neox.layers.*.mlp.dense_h_to_4h", (f"{BLOCK}.feedforward.up",)),
        Row("gpt_neox.layers.*.mlp.dense_4h_to_h", (f"{BLOCK}.feedforward.down",)),
        Row("gpt_neox.final_layer_norm", ("trunk.norm",)),
        Row("embed_out", ("head",)),
    ),
    fields={
        **{name: field for name, field in LAYER_NORM_FIELDS.items() if name != "num_key_value_heads"},
        "hidden_act": Field(("activation",), "gelu", {"gelu": "gelu_erf", **ACTIVATION_WORDS}),
        "attention_bias": Field(("bias.attention", "bias.attention_output"), True),
        "use_parallel_residual": Field(("residual",), True, {True: "parallel", False: "sequential"}),
        "hidden_dropout": Field(("dropout.embedding", "dropout.residual"), 0.0),
    },
    shared={**PARTLY_ROTATED_SHARED, "feedforward": "mlp", "bias": {"feedforward": True, "norm": True}},
    head="embed_out",
    harmless=names("classifier_dropout"),
    buffers=(
        *("gpt_neox.layers.*.attention.bias", "gpt_neox.layers.*.attention.masked_bias"),  # the causal mask
        "gpt_neox.layers.*.attention.rotary_emb.inv_freq",
    ),
    rope=Rope("rotary_emb_base", "rotary_pct", 0.25),
    splits_width=True,
)

# In order of preference: if several can express a model, the first is chosen
KNOWN = (GPT2, GPT1, LLAMA, MISTRAL, QWEN2, QWEN3, PHI3, GPT_NEOX, STABLELM, PHI, OLMO2, GEMMA3)
Families = Mapping[str, Family]
FAMILIES: Families = {family.name: family for family in KNOWN}

# Families that are refused: a glob of their names in transformers or llama.cpp -> what they need and foretell lacks
MISSING_PARTS = {
    "*moe*": "experts",
    "mixtral": "experts",
    "gpt?oss": "experts",
    "deepseek*": "experts",
    "qwen3?next": "a gated delta net",
    "qwen3?5*": "a gated delta net",
    "qwen35*": "a gated delta net",
    "lfm2*": "convolutions",
    "granite*": "multipliers of embeddings, scores, updates and logits",
    "smollm3": "layers without positions",
    "gemma2": "softcapping of scores and logits",
    "gemma3": "images (its text model alone is gemma3_text)",
    "gemma3n*": "embeddings for each layer",
}


def describe_unknown(kind: object, known: Iterable[str]) -> str:
    """The end of a refusal: what a family needs that is missing here, and the families that can be read."""
    name = str(kind).lower()
    part = next((part for glob, part in MISSING_PARTS.items() if fnmatchcase(name, glob)), None)
    return f"{'' if part is None else f': it needs {part}'}; known: {', '.join(known)}"


def differences(config: ModelConfig, family: Family) -> dict[str, tuple[Any, Any]]:
    """The fields that a round trip through the family's config.json would change: name to (our value, value read)."""
    if family.splits_width and config.width % config.num_heads:
        return {"width": (config.width, f"multiples of num_heads {config.num_heads}")}
    ours = meaningful(config)
    try:
        back = meaningful(read_settings(family, write_settings(family, config))[0])
    except ConfigError:  # the written fields contradict each other, such as heads that do not divide the width
        return {"head_width": (config.head_width, "width / num_heads")}
    # a field that is missing from `back` has no meaning there, because another field differs
    return {name: (value, back[name]) for name, value in ours.items() if name in back and back[name] != value}


def find_family(name: str, families: Families = FAMILIES) -> Family:
    """The family of this name; an unknown name is a `ConfigError` that suggests the nearest."""
    if name not in families:
        known = ", ".join(families)
        raise ConfigError(f"unknown family '{name}'{did_you_mean(name, families)} (known: {known})")
    return families[name]


def choose_family(config: ModelConfig, name: str | None = None, families: Families = FAMILIES) -> Family:
    """The named family, or the first that can express the configuration; a `ConfigError` if none can."""
    if name is not None:
        family = find_family(name, families)
        check_expressible(config, family, families)
        return family
    missing = {family.name: differences(config, family) for family in families.values()}
    fitting = next((name for name, fields in missing.items() if not fields), None)
    if fitting is None:
        nearest = min(missing, key=lambda name: len(missing[name]))
        raise ConfigError(f"no family can express this model; {_describe(families[nearest], missing[nearest])}")
    return families[fitting]


def check_expressible(config: ModelConfig, family: Family, families: Families = FAMILIES) -> None:
    """Raise `ConfigError` if the family cannot express the configuration, naming a family that can."""
    missing = differences(config, family)
    if missing:
        others = [other.name for other in families.values() if not differences(config, other)]
        hint = f"; {' and '.join(others)} can" if others else ""
        raise ConfigError(f"{_describe(family, missing)}{hint}")


def _describe(family: Family, missing: dict[str, tuple[object, object]]) -> str:
    """`gpt2 cannot express position = 'rotary' (it has 'learned'), norm = ...`."""
    parts = [f"{field} = {ours!r} (it has {theirs!r})" for field, (ours, theirs) in missing.items()]
    return f"{family.name} cannot express {', '.join(parts)}"

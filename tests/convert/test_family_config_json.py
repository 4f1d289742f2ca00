"""Every field of a config.json is used, refused by name, or noted; none is ignored silently."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from foretell.config.model import ModelConfig
from foretell.convert.config_json import meaningful, read_settings, write_settings
from foretell.convert.families import FAMILIES, differences
from foretell.convert.family import REQUIRED
from foretell.errors import ConfigError

GPT: dict[str, Any] = {"vocab_size": 31, "n_positions": 9, "n_embd": 16, "n_layer": 2, "n_head": 2}
MODERN: dict[str, Any] = {
    "vocab_size": 31,
    "max_position_embeddings": 9,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
BASE = {
    name: {field: value for field, value in {**GPT, **MODERN}.items() if field in family.fields}
    for name, family in FAMILIES.items()
}
LLAMA3: dict[str, Any] = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


def read(family: str, **changes: Any) -> tuple[ModelConfig, list[str]]:
    values = {**BASE[family], **changes}
    return read_settings(FAMILIES[family], {name: value for name, value in values.items() if value is not ...})


# family, a change of its config.json, the resulting fields
USED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("gpt2", {}, {"position": "learned", "activation": "gelu_tanh", "tie_embeddings": True, "feedforward_width": 64}),
    ("gpt2", {"n_inner": 50}, {"feedforward_width": 50}),
    ("gpt2", {"activation_function": "gelu"}, {"activation": "gelu_erf"}),
    ("gpt2", {"activation_function": "gelu_fast"}, {"activation": "gelu_tanh"}),
    ("gpt2", {"tie_word_embeddings": False}, {"tie_embeddings": False}),
    ("openai-gpt", {}, {"norm_placement": "post", "activation": "gelu_tanh"}),
    ("llama", {}, {"position": "rotary", "norm": "rmsnorm", "rope_theta": 10_000.0, "norm_epsilon": 1e-6}),
    ("llama", {"rope_theta": 5e5}, {"rope_theta": 5e5}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"rope_theta": 5e5}),
    ("llama", {"num_key_value_heads": None}, {"num_kv_heads": 2}),
    ("llama", {"head_dim": 6}, {"head_width": 6}),
    ("llama", {"attention_bias": True}, {"bias.attention": True, "bias.attention_output": True}),
    ("llama", {"mlp_bias": True}, {"bias.feedforward": True, "bias.attention": False}),
    ("mistral", {"sliding_window": 3}, {"window": 3}),
    ("mistral", {"sliding_window": ...}, {"window": 4096}),
    ("mistral", {"sliding_window": None}, {"window": None}),
    ("qwen2", {}, {"bias.attention": True, "bias.attention_output": False, "qk_norm": False}),
    ("qwen2", {"sliding_window": 3, "use_sliding_window": False}, {"window": None}),
    ("qwen2", {"layer_types": ["full_attention", "full_attention"]}, {"window": None}),
    ("phi3", {"sliding_window": 3, "embd_pdrop": 0.1}, {"window": 3, "rotary_share": 1.0, "norm_epsilon": 1e-5}),
    ("phi3", {"partial_rotary_factor": 0.75}, {"rotary_share": 0.75}),
    ("gpt_neox", {}, {"rotary_share": 0.25, "residual": "parallel", "activation": "gelu_erf", "tie_embeddings": False}),
    ("gpt_neox", {"rotary_pct": 1.0, "rotary_emb_base": 500}, {"rotary_share": 1.0, "rope_theta": 500}),
    ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 9}}, {"rotary_share": 0.5}),
    (
        "gpt_neox",
        {"rotary_pct": 0.5, "partial_rotary_factor": 0.5, "rope_theta": 9},
        {"rotary_share": 0.5, "rope_theta": 9},
    ),
    ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}, {"residual": "sequential"}),
    ("phi", {}, {"rotary_share": 0.5, "residual": "parallel_shared_norm", "bias.head": True}),
    ("stablelm", {"use_qkv_bias": True}, {"rotary_share": 0.25, "bias.attention": True, "residual": "sequential"}),
    ("qwen3", {}, {"qk_norm": True, "head_width": 128, "bias.attention": False}),
]


@pytest.mark.parametrize(("family", "changes", "expected"), USED, ids=str)
def test_known_fields_are_used_without_a_note(family, changes, expected) -> None:
    config, notes = read(family, **changes)
    ours = meaningful(config)
    assert {name: ours[name] for name in expected} == expected
    assert notes == []


def test_linear_and_llama3_scaling_are_read_in_both_spellings() -> None:
    for section, kind in (("rope_scaling", "type"), ("rope_scaling", "rope_type"), ("rope_parameters", "rope_type")):
        scaling = read("llama", **{section: {kind: "linear", "factor": 2.5}})[0].rope_scaling
        assert scaling is not None
        assert (scaling.type, scaling.factor) == ("linear", 2.5)
    for extra, context in (({}, 9), ({"original_max_position_embeddings": 5}, 5)):
        scaling = read("llama", rope_scaling={**LLAMA3, **extra})[0].rope_scaling
        assert scaling is not None
        assert (scaling.low_frequency_factor, scaling.high_frequency_factor, scaling.factor) == (1, 4, 8)
        assert scaling.original_context_length == context


# family, a change, words of the refusal
REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx"]),
    ("gpt2", {"scale_attn_weights": False}, ["scale_attn_weights"]),
    ("gpt2", {"add_cross_attention": True}, ["add_cross_attention"]),
    ("gpt2", {"activation_function": "quick_gelu"}, ["activation_function", "quick_gelu", "gelu_new"]),
    ("gpt2", {"activation_function": ["gelu"]}, ["activation_function"]),
    ("gpt2", {"quantization_config": {"bits": 4}}, ["quantization_config"]),
    ("gpt2", {"n_layer": ...}, ["n_layer is missing"]),
    ("gpt2", {"n_layer": 10**9}, ["n_layer = 1000000000"]),
    ("gpt2", {"n_embd": "wide"}, ["n_embd = 'wide'"]),
    ("gpt2", {"n_embd": -16}, ["-16"]),
    ("gpt2", {"n_embd": float("nan")}, ["n_embd = nan"]),
    ("gpt2", {"n_head": 3}, ["n_embd 16", "n_head 3"]),
    ("gpt2", {"n_head": 0}, ["n_head = 0"]),
    ("gpt2", {"layer_norm_epsilon": float("inf")}, ["layer_norm_epsilon = inf"]),
    ("gpt2", {"vocab_size": {}}, ["vocab_size"]),
    ("openai-gpt", {"afn": "gelu_new"}, ["afn", "gelu_new"]),
    ("llama", {"sliding_window": 4}, ["sliding_window", "llama"]),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 4}}, ["rope_scaling", "yarn", "llama3"]),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4}}, ["rope_scaling", "dynamic"]),
    ("llama", {"rope_scaling": {"type": "linear"}}, ["rope_scaling", "factor"]),
    ("llama", {"rope_scaling": {"type": "linear", "factor": "x"}}, ["factor", "x"]),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3}}, ["rope_scaling.beta_fast"]),
    ("llama", {"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2}}, ["contradict"]),
    ("llama", {"rope_scaling": {"type": ["linear"], "factor": 2}}, ["rope_scaling"]),
    ("llama", {"rope_scaling": "linear"}, ["rope_scaling", "not a section"]),
    ("llama", {"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default"}}, ["contradict"]),
    ("llama", {"rope_theta": 5, "rope_parameters": {"rope_theta": 6}}, ["rope_theta", "5", "6"]),
    ("llama", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor"]),
    ("llama", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping"]),
    ("llama", {"num_key_value_heads": 3}, ["num_key_value_heads 3"]),
    ("llama", {"head_dim": 5}, ["even head_dim"]),
    ("llama", {"num_attention_heads": 3}, ["is not a multiple of num_attention_heads 3; change one or set head_dim"]),
    ("gpt_neox", {"hidden_size": 6}, ["even hidden_size / num_attention_heads, not 3"]),
    ("gpt_neox", {"rotary_pct": 0.5, "rope_scaling": {"partial_rotary_factor": 1}}, ["rotary_pct", "contradict"]),
    ("gpt_neox", {"rotary_pct": 0.1}, ["rotary_pct 0.1", "even"]),
    ("gpt_neox", {"use_parallel_residual": "both"}, ["use_parallel_residual", "True, False"]),
    ("phi", {"qk_layernorm": True}, ["qk_layernorm"]),
    ("gpt_neox", {"rotary_emb_base": 5, "rope_theta": 6}, ["rotary_emb_base = 5", "rope_theta = 6", "contradict"]),
    ("phi3", {"rope_scaling": {"type": "linear", "factor": 2}}, ["rope_scaling", "linear", "known: default"]),
    ("phi3", {"rope_scaling": {"type": "longrope"}}, ["rope_scaling", "longrope"]),
    ("mistral", {"sliding_window": 0}, ["window"]),
    ("mistral", {"sliding_window": [3, None]}, ["sliding_window"]),
    ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types"]),
    ("qwen2", {"use_sliding_window": True}, ["use_sliding_window"]),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types"]),
    ("qwen3", {"layer_types": [["full_attention"]]}, ["layer_types"]),
]


@pytest.mark.parametrize(("family", "changes", "words"), REFUSED, ids=str)
def test_a_field_that_cannot_be_expressed_is_refused_by_name(family, changes, words) -> None:
    with pytest.raises(ConfigError) as raised:
        read(family, **changes)
    assert "\n" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)


def test_unknown_fields_are_noted_only_if_set() -> None:
    _, notes = read("gpt2", reorder_and_upcast_attn=True, novel_gate=0.5, other_gate=None, rope_theta=3)
    assert [note.split()[0] for note in notes] == ["reorder_and_upcast_attn", "novel_gate", "rope_theta"]
    assert "is unknown and was not used" in notes[1]
    assert read("llama", auto_map={"AutoConfig": "x.y"})[1] == ["auto_map is ignored: custom code is never run"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_json_written_by_transformers_gives_no_notes(family: str) -> None:
    kind = transformers.AutoConfig.for_model(family, **BASE[family])
    _, notes = read(family, **kind.to_dict())
    assert notes == []


# enough for the default of 8 or 32 key/value heads of some families
MANY_HEADS: dict[str, Any] = {"num_attention_heads": 64, "hidden_size": 512}


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_transformers(family: str) -> None:
    table = FAMILIES[family]
    values = BASE[family] | (MANY_HEADS if "num_attention_heads" in table.fields else {})
    needed = {name: value for name, value in values.items() if table.fields[name].default is REQUIRED}
    settings = type(transformers.AutoConfig.for_model(family))(**needed).to_dict()
    optional = [name for name, field in table.fields.items() if field.default is not REQUIRED and name in settings]
    assert optional
    config, _ = read_settings(table, needed)
    spelled_out, _ = read_settings(table, needed | {name: settings[name] for name in optional})
    assert meaningful(config) == meaningful(spelled_out)


@pytest.mark.parametrize("family", FAMILIES)
def test_written_settings_are_read_back_the_same(family: str) -> None:
    config, _ = read(family)
    assert differences(config, FAMILIES[family]) == {}
    back, notes = read_settings(FAMILIES[family], write_settings(FAMILIES[family], config))
    assert meaningful(back) == meaningful(config)
    assert notes == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_any_value_in_any_field_gives_a_configuration_or_a_one_line_error(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(sorted(FAMILIES)))
    table = FAMILIES[family]
    name = data.draw(
        st.sampled_from([*table.fields, *table.fixed, "rope_scaling", "rope_parameters", "rope_theta", "x"])
    )
    try:
        config, _ = read(family, **{name: data.draw(JSON)})
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(config, ModelConfig)

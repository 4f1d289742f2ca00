"""The shape of a decoder: other projects' names, sizes that follow from others, contradictions as one line."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.errors import ConfigError
from foretell.model.presets import preset_config

SIZES = {"num_layers": 2, "num_heads": 4, "width": 32, "context_length": 16, "vocab_size": 50}
NANOGPT = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 16, "vocab_size": 50, "bias": False, "dropout": 0.2}
HUGGING_FACE = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 100,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 50,
}


def test_nanogpts_names_are_accepted():
    config = make_section(ModelConfig, NANOGPT)
    assert (config.num_layers, config.num_heads, config.width, config.context_length) == (2, 4, 32, 16)
    assert config.num_kv_heads == 4
    assert config.head_width == 8
    assert not config.bias.attention
    assert config.dropout.attention == 0.2


def test_hugging_faces_names_are_accepted():
    config = make_section(ModelConfig, HUGGING_FACE)
    assert (config.num_kv_heads, config.feedforward_width, config.norm_epsilon) == (2, 100, 1e-6)


def test_omitted_sizes_follow_from_the_others():
    assert make_section(ModelConfig, SIZES).feedforward_width == 128
    assert make_section(ModelConfig, SIZES | {"feedforward": "gated"}).feedforward_width == 88
    assert make_section(ModelConfig, SIZES | {"head_width": 10}).head_width == 10


def test_a_configuration_survives_a_round_trip_through_json():
    config = make_section(ModelConfig, SIZES | {"window": [None, 4], "position": "rotary"})
    assert make_section(ModelConfig, config.model_dump(mode="json")) == config


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        setattr(make_section(ModelConfig, SIZES), "width", 3)  # noqa: B010 - types would refuse an assignment


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "width 32 is not a multiple of num_heads 3"),
        ({"num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"attention_output": False, "head_width": 4}, "attention_output is off"),
        ({"position": "rotary", "head_width": 5}, "even head_width"),
        ({"position": "sinusoidal", "width": 33, "head_width": 8}, "even width"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "position = 'rotary'"),
        ({"qk_norm": True, "norm": "none"}, "qk_norm needs a norm"),
        ({"window": [1, 2, 3]}, "window has 3 entries for 2 layers"),
        ({"residual": "parallel", "norm_placement": "post"}, "residual = 'parallel' needs .* norm_placement = 'pre'"),
        ({"residual": "parallel_shared_norm", "feedforward": "none"}, "'parallel_shared_norm' needs feedforward"),
        ({"residual": "parallel", "attention_residual": False}, "needs feedforward, attention_residual"),
        ({"window": 0}, "a window must be from 1 to 16,777,216"),
        ({"window": 10**30}, "a window must be from 1 to 16,777,216"),
        ({"n_layr": 3}, "unknown key 'model.n_layr', did you mean 'num_layers'"),
        ({"bias": {"atention": True}}, "did you mean 'attention'"),
        ({"activation": "gelu"}, "activation = 'gelu'"),
    ],
)
def test_a_contradiction_is_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_section(ModelConfig, SIZES | changes, "model")
    assert "\n" not in str(caught.value)


def test_without_a_norm_qk_norm_is_off_unless_asked_for():
    assert not preset_config("tiny", vocab_size=50, norm="none").qk_norm
    assert not preset_config("tiny", vocab_size=50).replaced(norm="none").qk_norm
    assert preset_config("tiny", vocab_size=50, norm="layernorm").qk_norm
    with pytest.raises(ConfigError, match="qk_norm needs a norm"):
        preset_config("tiny", vocab_size=50, norm="none", qk_norm=True)
    with pytest.raises(ConfigError, match="qk_norm needs a norm"):
        preset_config("tiny", vocab_size=50).replaced(norm="none", qk_norm=True)

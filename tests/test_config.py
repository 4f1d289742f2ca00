"""The configuration: names of other projects, derived sizes, and one-line errors for contradictions."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from foretell.config import Config, ModelConfig, SamplingConfig, TrainingConfig, make_section, read_toml
from foretell.errors import ConfigError

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


def test_missing_sizes_are_derived_from_the_others():
    assert make_section(ModelConfig, SIZES).feedforward_width == 128
    assert make_section(ModelConfig, SIZES | {"feedforward": "gated"}).feedforward_width == 88
    assert make_section(ModelConfig, SIZES | {"head_width": 10}).head_width == 10


def test_a_configuration_round_trips_through_json():
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
        ({"window": 0}, "a window must be 1 or more"),
        ({"n_layr": 3}, "unknown key 'model.n_layr', did you mean 'num_layers'"),
        ({"bias": {"atention": True}}, "did you mean 'attention'"),
        ({"activation": "gelu"}, "activation = 'gelu'"),
    ],
)
def test_a_contradiction_is_a_one_line_error(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_section(ModelConfig, SIZES | changes, "model")
    assert "\n" not in str(caught.value)


def test_unknown_keys_of_nested_sections_are_named_with_their_path():
    values = {"model": SIZES, "training": {"steps": 3, "learning_rat": 1}}
    with pytest.raises(ConfigError, match=r"'training\.learning_rat', did you mean 'learning_rate'"):
        make_section(Config, values)


def test_the_default_sampling_leaves_the_distribution_unchanged():
    config = SamplingConfig()
    assert (config.temperature, config.top_k, config.top_p, config.min_p, config.repetition_penalty) == (
        1,
        None,
        1,
        0,
        1,
    )


def test_toml_is_read_and_an_error_names_the_file(tmp_path):
    (tmp_path / "good.toml").write_text("[training]\nsteps = 3\n")
    assert make_section(TrainingConfig, read_toml(tmp_path / "good.toml")["training"]).steps == 3
    (tmp_path / "bad.toml").write_text("[")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        read_toml(tmp_path / "bad.toml")


# The training section of a run.json written by the first version
OLD_TRAINING = {
    "steps": 200,
    "batch_size": 16,
    "accumulation": 1,
    "learning_rate": 0.003,
    "min_learning_rate": 0.1,
    "warmup_steps": 20,
    "schedule": "cosine",
    "decay_fraction": 0.2,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-08,
    "clip_norm": 1.0,
    "evaluate_every": 20,
    "evaluation_tokens": 8192,
    "log_every": 2,
    "sample_every": 40,
    "checkpoint_every": 40,
    "keep_checkpoints": 2,
    "seed": 1,
}


def test_a_training_section_of_the_first_version_is_read_unchanged():
    config = make_section(TrainingConfig, OLD_TRAINING)
    new = {key: value for key, value in config.model_dump(mode="json").items() if key not in OLD_TRAINING}
    assert new == {
        "optimizer": "adamw",
        "weight_decay_by_path": {},
        "momentum": 0.95,
        "label_smoothing": 0.0,
        "patience": None,
        "sample_prompts": [],
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimizer": "adam"}, "training.optimizer = 'adam'"),
        ({"label_smoothing": 1.0}, "training.label_smoothing = 1.0"),
        ({"patience": 0}, "training.patience = 0"),
        ({"momentum": 1}, "training.momentum = 1"),
        ({"weight_decay_by_path": {"**.bias": -1}}, "training.weight_decay_by_path.**.bias = -1"),
        ({"weight_decay_by_path": ["**.bias"]}, "training.weight_decay_by_path = "),
    ],
)
def test_invalid_optimizer_settings_are_refused(values, message):
    with pytest.raises(ConfigError) as raised:
        make_section(TrainingConfig, {"steps": 1, **values}, "training")
    assert str(raised.value).startswith(message)

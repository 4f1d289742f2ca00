"""The configuration: other projects' names, derived sizes, and contradictions said in one line."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from foretell.config import (
    Config,
    ModelConfig,
    SamplingConfig,
    Section,
    TrainingConfig,
    make_section,
    read_toml,
    translate_training_input,
)
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
        ({"window": 0}, "a window must be 1 or more"),
        ({"n_layr": 3}, "unknown key 'model.n_layr', did you mean 'num_layers'"),
        ({"bias": {"atention": True}}, "did you mean 'attention'"),
        ({"activation": "gelu"}, "activation = 'gelu'"),
    ],
)
def test_a_contradiction_is_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_section(ModelConfig, SIZES | changes, "model")
    assert "\n" not in str(caught.value)


def test_unknown_keys_of_nested_sections_are_named_with_their_path():
    values = {"model": SIZES, "training": {"steps": 3, "learning_rat": 1}}
    with pytest.raises(ConfigError, match=r"'training\.learning_rat', did you mean 'learning_rate'"):
        make_section(Config, values)


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        (ModelConfig, {**SIZES, "n_layr": 3}, "unknown key 'n_layr', did you mean 'num_layers'?"),
        (ModelConfig, {"num_heads": 4, "width": 30}, "width 30 is not a multiple of num_heads 4"),
        (ModelConfig, {"num_layers": 2, "num_heads": "four"}, "num_heads = 'four'"),
        (SamplingConfig, {"temperature": -1}, "temperature = -1: input should be greater than or equal to 0"),
        (
            Config,
            {"model": SIZES, "training": {"steps": 3, "learning_rat": 1}},
            "unknown key 'training.learning_rat', did you mean 'learning_rate'?",
        ),
        (
            Config,
            {"model": {**SIZES, "bias": {"atention": True}}, "training": {"steps": 3}},
            "unknown key 'model.bias.atention', did you mean 'attention'?",
        ),
        (Config, {"model": {**SIZES, "num_heads": 3}, "training": {"steps": 3}}, "model: width 32 is not a multiple"),
        (Config, {"model": SIZES}, "missing key 'training'"),
    ],
)
def test_a_section_made_with_wrong_values_raises_one_line(section: type[Section], values: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        section(**values)
    assert "\n" not in str(caught.value)
    assert "validation error" not in str(caught.value)


def test_without_a_norm_qk_norm_is_off_unless_asked_for():
    assert not preset_config("tiny", vocab_size=50, norm="none").qk_norm
    assert not preset_config("tiny", vocab_size=50).replaced(norm="none").qk_norm
    assert preset_config("tiny", vocab_size=50, norm="layernorm").qk_norm
    with pytest.raises(ConfigError, match="qk_norm needs a norm"):
        preset_config("tiny", vocab_size=50, norm="none", qk_norm=True)
    with pytest.raises(ConfigError, match="qk_norm needs a norm"):
        preset_config("tiny", vocab_size=50).replaced(norm="none", qk_norm=True)


def test_the_defaults_of_sampling():
    config = SamplingConfig()
    values = (config.temperature, config.top_k, config.top_p, config.min_p, config.repetition_penalty, config.seed)
    assert values == (0.8, None, 0.95, 0, 1, 1)


def test_toml_is_read_and_bad_toml_is_named(tmp_path):
    (tmp_path / "good.toml").write_text("[training]\nsteps = 3\n")
    assert make_section(TrainingConfig, read_toml(tmp_path / "good.toml")["training"]).steps == 3
    (tmp_path / "bad.toml").write_text("[")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        read_toml(tmp_path / "bad.toml")


# The section as the first version wrote it into run.json
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


def test_the_settings_of_the_first_version_are_read_with_later_defaults():
    config = make_section(TrainingConfig, OLD_TRAINING)
    new = {key: value for key, value in config.model_dump(mode="json").items() if key not in OLD_TRAINING}
    assert new == {
        "gradient_accumulation_steps": 1,
        "final_learning_rate_share": 0.1,
        "frozen": [],
        "parallel": "ddp",
        "checkpoint_activations": [],
        "optimizer": "adamw",
        "weight_decay_by_path": {},
        "momentum": 0.95,
        "compile": None,
        "label_smoothing": 0.0,
        "patience": None,
        "sample_prompts": [],
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"optimizer": "adam"}, "training.optimizer = 'adam'"),
        ({"label_smoothing": 1.0}, "training.label_smoothing = 1.0"),
        ({"patience": 0}, "training.patience = 0"),
        ({"momentum": 1}, "training.momentum = 1"),
        ({"weight_decay_by_path": {"**.bias": -1}}, "training.weight_decay_by_path.**.bias = -1"),
        ({"weight_decay_by_path": ["**.bias"]}, "training.weight_decay_by_path = "),
    ],
)
def test_impossible_training_settings_are_refused(values, words):
    with pytest.raises(ConfigError) as raised:
        make_section(TrainingConfig, {"steps": 1, **values}, "training")
    assert str(raised.value).startswith(words)


# --- other names and other meanings in a user's training section ------------------------------------------------------


def test_the_first_versions_names_are_read_with_any_share():
    config = make_section(TrainingConfig, {"steps": 1, "accumulation": 2, "min_learning_rate": 0.005})
    assert (config.gradient_accumulation_steps, config.final_learning_rate_share) == (2, 0.005)


def test_the_first_versions_names_are_accepted_from_a_user():
    translated = translate_training_input({"accumulation": 2, "min-learning-rate": 0.05})
    assert translated == {"gradient_accumulation_steps": 2, "final_learning_rate_share": 0.05}


def test_nanogpts_min_lr_becomes_a_share_of_the_learning_rate():
    translated = translate_training_input({"learning_rate": 6e-4, "min_lr": 6e-5, "max_iters": 10})
    assert translated == {"learning_rate": 6e-4, "steps": 10, "final_learning_rate_share": pytest.approx(0.1)}


def test_a_tiny_share_that_follows_from_min_lr_is_accepted():
    assert translate_training_input({"learning_rate": 1e-3, "min_lr": 1e-6})["final_learning_rate_share"] < 0.01


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"min_learning_rate": 6e-5}, ["final_learning_rate_share = 6e-05 looks like a learning rate", "a tenth"]),
        ({"final_learning_rate_share": 0.0099}, ["0.0099", "share of learning_rate"]),
        ({"min_lr": 6e-5}, ["min_lr = 6e-05 is a learning rate", "give learning_rate with it"]),
        ({"min_lr": "low", "learning_rate": 1e-3}, ["min_lr = 'low'"]),
        ({"min_lr": 1e-5, "learning_rate": 1e-3, "final_learning_rate_share": 0.1}, ["min_lr", "alone"]),
        (
            {"max_iters": 9, "batch_size": 12, "gradient_accumulation_steps": 40},
            [
                "rows of one micro-batch",
                "batch_size = 480 with gradient_accumulation_steps = 40",
                "steps for max_iters",
            ],
        ),
        (
            {"grad-clip": 1.0, "min_lr": 1e-5, "batch_size": 4, "gradient_accumulation_steps": 2},
            ["batch_size = 8", "clip_norm for grad_clip, final_learning_rate_share for min_lr"],
        ),
    ],
)
def test_settings_that_mean_something_else_elsewhere_are_refused(values, words):
    with pytest.raises(ConfigError) as raised:
        translate_training_input(values)
    assert "\n" not in str(raised.value)
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        {"final_learning_rate_share": 0},
        {"final_learning_rate_share": 0.0},
        {"final_learning_rate_share": 0.01},
        {"batch_size": 480, "gradient_accumulation_steps": 40, "steps": 9},
        {"max_iters": 9, "batch_size": 12, "gradient_accumulation_steps": 1},
        {"max_iters": 9, "batch_size": 12},
    ],
)
def test_settings_with_one_meaning_are_accepted(values):
    translate_training_input(values)

"""The settings of a training: older versions, values out of range, TOML files, and a user's other words."""

from __future__ import annotations

import pytest

from foretell.config.section import make_section, training_names
from foretell.config.toml import read_toml
from foretell.config.training import TrainingConfig
from foretell.errors import ConfigError

# A section in a run.json that lacks later settings
OLD_TRAINING = {
    "steps": 200,
    "batch_size": 16,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.003,
    "final_learning_rate_share": 0.1,
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


def test_settings_that_an_older_run_lacks_have_their_defaults():
    config = make_section(TrainingConfig, OLD_TRAINING)
    new = {key: value for key, value in config.model_dump(mode="json").items() if key not in OLD_TRAINING}
    assert new == {
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
        "similar_vectors": False,
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


def test_toml_is_read_and_bad_toml_is_named(tmp_path):
    (tmp_path / "good.toml").write_text("[training]\nsteps = 3\n")
    assert make_section(TrainingConfig, read_toml(tmp_path / "good.toml")["training"]).steps == 3
    (tmp_path / "bad.toml").write_text("[")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        read_toml(tmp_path / "bad.toml")


# --- a user's other words --------------------------------------------------------------------------------------------


def test_nanogpts_min_lr_becomes_a_share_of_the_learning_rate():
    translated = training_names({"learning_rate": 6e-4, "min_lr": 6e-5, "max_iters": 10})
    assert translated == {"learning_rate": 6e-4, "steps": 10, "final_learning_rate_share": pytest.approx(0.1)}


def test_a_tiny_share_that_follows_from_min_lr_is_accepted():
    assert training_names({"learning_rate": 1e-3, "min_lr": 1e-6})["final_learning_rate_share"] < 0.01


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"min-learning-rate": 6e-5}, ["final_learning_rate_share = 6e-05 looks like a learning rate", "a tenth"]),
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
        training_names(values)
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
    training_names(values)

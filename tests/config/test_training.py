"""The settings of a training run: older versions, values out of range, TOML files."""

from __future__ import annotations

import pytest

from foretell.config import TrainingConfig, make_section, read_toml
from foretell.errors import ConfigError

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


def test_the_first_versions_names_are_read_with_any_share():
    config = make_section(TrainingConfig, {"steps": 1, "accumulation": 2, "min_learning_rate": 0.005})
    assert (config.gradient_accumulation_steps, config.final_learning_rate_share) == (2, 0.005)


def test_toml_is_read_and_bad_toml_is_named(tmp_path):
    (tmp_path / "good.toml").write_text("[training]\nsteps = 3\n")
    assert make_section(TrainingConfig, read_toml(tmp_path / "good.toml")["training"]).steps == 3
    (tmp_path / "bad.toml").write_text("[")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        read_toml(tmp_path / "bad.toml")

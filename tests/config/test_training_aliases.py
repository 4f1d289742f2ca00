"""A user's training section in other words: translated, or refused where a word means something else."""

from __future__ import annotations

import pytest

from foretell.config import training_names
from foretell.errors import ConfigError


def test_the_first_versions_names_are_accepted_from_a_user():
    translated = training_names({"accumulation": 2, "min-learning-rate": 0.05})
    assert translated == {"gradient_accumulation_steps": 2, "final_learning_rate_share": 0.05}


def test_nanogpts_min_lr_becomes_a_share_of_the_learning_rate():
    translated = training_names({"learning_rate": 6e-4, "min_lr": 6e-5, "max_iters": 10})
    assert translated == {"learning_rate": 6e-4, "steps": 10, "final_learning_rate_share": pytest.approx(0.1)}


def test_a_tiny_share_that_follows_from_min_lr_is_accepted():
    assert training_names({"learning_rate": 1e-3, "min_lr": 1e-6})["final_learning_rate_share"] < 0.01


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

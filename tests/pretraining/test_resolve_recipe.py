"""Default settings of the sizes."""

from __future__ import annotations

import pytest

from foretell.model.presets import SIZES, preset_config
from foretell.pretraining.resolve import ADAMW, LARGE, MUON, continued_defaults, nearest_size, training_defaults


def config(size: str):
    return preset_config(size, vocab_size=512)


@pytest.mark.parametrize("size", MUON)
def test_sizes_up_to_medium_are_trained_with_muon(size):
    defaults = training_defaults(size, config(size), 100)
    assert (defaults["optimizer"], defaults["schedule"], defaults["final_learning_rate_share"]) == (
        "muon",
        "linear",
        0.0,
    )
    assert defaults["learning_rate"] == MUON[size].learning_rate
    assert defaults["batch_size"] * config(size).context_length == MUON[size].tokens_per_step


@pytest.mark.parametrize("size", ADAMW)
def test_choosing_adamw_gives_its_learning_rate_and_schedule(size):
    defaults = training_defaults(size, config(size), 100, {"optimizer": "adamw"})
    assert defaults["optimizer"] == "adamw"
    assert defaults["learning_rate"] == ADAMW[size].learning_rate < MUON[size].learning_rate
    assert "schedule" not in defaults


def test_larger_sizes_were_not_tried_and_stay_with_adamw():
    assert set(SIZES) - set(MUON) == {"base"}
    defaults = training_defaults("base", config("base"), 100)
    assert (defaults["optimizer"], defaults["learning_rate"]) == ("adamw", LARGE.learning_rate)


def test_a_trained_model_continues_at_a_tenth_of_the_learning_rate():
    continued = continued_defaults(config("tiny"), 100)
    assert continued["optimizer"] == "adamw"
    assert continued["learning_rate"] == pytest.approx(ADAMW["tiny"].learning_rate / 10)
    by_muon = continued_defaults(config("tiny"), 100, {"optimizer": "muon"})
    assert by_muon["learning_rate"] == pytest.approx(MUON["tiny"].learning_rate / 10)


def test_choosing_a_schedule_leaves_its_own_final_share():
    assert "final_learning_rate_share" not in training_defaults("tiny", config("tiny"), 100, {"schedule": "cosine"})


@pytest.mark.parametrize("size", SIZES)
def test_the_nearest_size_of_a_size_is_itself(size):
    assert nearest_size(config(size)) == size

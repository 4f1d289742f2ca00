"""Sections: what is wrong with their values is one line with the path of the field."""

from __future__ import annotations

import re
from typing import Any

import pytest

from foretell.config import Config, ModelConfig, SamplingConfig, Section, make_section
from foretell.errors import ConfigError

SIZES = {"num_layers": 2, "num_heads": 4, "width": 32, "context_length": 16, "vocab_size": 50}


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

"""Sections: what is wrong with their values is one line with the path of the field."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import field_validator

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import Section, check_given, make_section
from foretell.config.training import Config
from foretell.errors import ConfigError

SIZES = {"num_layers": 2, "num_heads": 4, "width": 32, "context_length": 16, "vocab_size": 50}


def test_two_names_of_a_field_have_one_value():
    assert make_section(ModelConfig, {**SIZES, "n_layer": SIZES["num_layers"]}).num_layers == SIZES["num_layers"]
    with pytest.raises(ConfigError, match="num_layers = .* and n_layer = 9 are the same setting"):
        make_section(ModelConfig, {**SIZES, "n_layer": 9})
    with pytest.raises(ConfigError, match="temperature = nan: input should be a finite number"):
        make_section(SamplingConfig, {"temperature": float("nan")})  # which is not equal to itself


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"head_width": "x"}, "model.head_width = 'x': input should be a valid integer"),
        ({"num_layers": 3, "width": "wide"}, "model.width = 'wide'"),
        ({"dropout": 2}, "model.dropout: 2 is not a rate; give a number from 0 to less than 1"),
        ({"bias": {"attention": "yeah"}}, "model.bias.attention = 'yeah'"),
    ],
)
def test_a_part_of_a_section_is_refused_for_the_values_that_it_has(values: dict[str, Any], message: str):
    check_given(ModelConfig, {"num_layers": 3, "dropout": 0.2, "num_kv_heads": 4}, "model")
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_given(ModelConfig, values, "model")


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


class Named(Section):
    name: str = "a"

    @field_validator("name", mode="before")
    @classmethod
    def _known(cls, value: str) -> str:
        raise ValueError(f"unknown name {value}")


def test_half_a_surrogate_pair_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="named contains an unpaired surrogate"):
        make_section(Named, {"name": "\ud800"}, "named")

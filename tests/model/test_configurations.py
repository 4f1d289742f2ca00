"""The configurations that the other tests use cover every choice of the model section."""

from __future__ import annotations

from typing import Literal, get_args, get_origin

import pytest

from foretell.config.model import Bias, DropoutRates, ModelConfig, RopeScaling


def literal_choices() -> list[tuple[str, object]]:
    fields = {name: field.annotation for name, field in ModelConfig.model_fields.items()}
    fields["rope_scaling.type"] = RopeScaling.model_fields["type"].annotation
    return [(name, value) for name, kind in fields.items() if get_origin(kind) is Literal for value in get_args(kind)]


def switches() -> list[tuple[str, bool]]:
    fields = [name for name, field in ModelConfig.model_fields.items() if field.annotation is bool]
    fields += [f"bias.{name}" for name in Bias.model_fields]
    return [(name, value) for name in fields for value in (False, True)]


def value_of(config: ModelConfig, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


@pytest.mark.parametrize(("path", "choice"), literal_choices() + switches())
def test_every_choice_is_covered(path: str, choice: object, configurations: list[ModelConfig]) -> None:
    assert any(value_of(config, path) == choice for config in configurations)


@pytest.mark.parametrize("rate", DropoutRates.model_fields)
def test_every_dropout_is_covered_on_and_off(rate: str, configurations: list[ModelConfig]) -> None:
    assert {getattr(config.dropout, rate) > 0 for config in configurations} == {False, True}


def test_grouped_heads_free_head_widths_and_every_form_of_window_are_covered(configurations: list[ModelConfig]) -> None:
    assert {config.num_heads // config.num_kv_heads for config in configurations} >= {1, 2, 4}
    assert any(config.head_width * config.num_heads != config.width for config in configurations)
    assert {type(config.window) for config in configurations} == {type(None), int, tuple}

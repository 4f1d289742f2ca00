"""Presets, their published sizes, and their cost."""

from __future__ import annotations

import pytest
import torch

from foretell.config.weight_shapes import count_parameters
from foretell.errors import ConfigError
from foretell.model.cost import training_flops_per_token
from foretell.model.decoder import Decoder
from foretell.model.presets import PRESETS, PUBLISHED, SIZES, preset_config


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt1", 116_534_784),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_published_presets_have_the_published_parameter_count(name: str, parameters: int) -> None:
    assert count_parameters(preset_config(name)) == parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3-small", 0.125),
        ("gpt3-medium", 0.35),
        ("gpt3-large", 0.76),
        ("gpt3-xl", 1.3),
        ("gpt3-2.7b", 2.7),
        ("gpt3-6.7b", 6.7),
        ("gpt3-13b", 13),
        ("gpt3-175b", 175),
    ],
)
def test_gpt3_presets_have_about_the_papers_rounded_parameter_count(name: str, billions: float) -> None:
    assert count_parameters(preset_config(name)) == pytest.approx(billions * 1e9, rel=0.03)


def test_every_second_layer_of_gpt3_has_a_window() -> None:
    windows = preset_config("gpt3-small").windows
    assert set(windows[0::2]) == {None}
    assert len(set(windows[1::2]) - {None}) == 1


@pytest.mark.parametrize("name", SIZES)
def test_training_sizes_can_be_exported_as_qwen3(name: str) -> None:
    config = preset_config(name, vocab_size=1000)
    assert (config.position, config.norm, config.feedforward, config.qk_norm) == ("rotary", "rmsnorm", "gated", True)
    assert not any(config.bias.model_dump().values())
    assert config.head_width in (32, 64)


@pytest.mark.parametrize("name", SIZES)
def test_training_sizes_require_a_vocabulary_size(name: str) -> None:
    with pytest.raises(ConfigError, match=r"missing key 'model.vocab_size'"):
        preset_config(name)


def test_every_preset_is_a_training_size_or_published() -> None:
    assert set(PRESETS) == set(SIZES) | set(PUBLISHED)


def test_an_unknown_size_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown size 'gpt2-larg', did you mean 'gpt2-large'"):
        preset_config("gpt2-larg")


def test_training_flops_are_6_per_weight_and_12_per_attention_pair() -> None:
    config = preset_config("gpt2")
    weights = 124_439_808 - 1024 * 768
    assert training_flops_per_token(config) == 6 * weights + 12 * 12 * 768 * 1024


def test_presets_can_be_built_on_the_meta_device() -> None:
    with torch.device("meta"):
        assert next(Decoder(preset_config("gpt3-175b", num_layers=2, window=None)).parameters()).is_meta

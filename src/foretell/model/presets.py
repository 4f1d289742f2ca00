"""Named model shapes: the sizes that `train` offers, and published models.

The sizes up to `base` are shaped like Qwen3, so other programs can load exports of them: rotary positions, RMSNorm also
on queries and keys, gated feed-forward, no biases, tied embeddings, heads of 64 where the width allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.errors import ConfigError, did_you_mean

MODERN: dict[str, Any] = {
    "position": "rotary",
    "norm": "rmsnorm",
    "norm_epsilon": 1e-6,
    "qk_norm": None,  # on, unless norm is 'none'
    "feedforward": "gated",
    "activation": "silu",
    "bias": False,
}
GPT2: dict[str, Any] = {"context_length": 1024, "vocab_size": 50257}
# Brown et al. 2020, table 2.1; every second layer is banded. The width of the band is not published; 256 is ours
GPT3: dict[str, Any] = {"context_length": 2048, "vocab_size": 50257}
GPT3_BAND = 256


def _shape(num_layers: int, num_heads: int, width: int, **rest: Any) -> dict[str, Any]:
    return {"num_layers": num_layers, "num_heads": num_heads, "width": width, **rest}


def _gpt3(num_layers: int, num_heads: int, width: int, head_width: int) -> dict[str, Any]:
    window = (None, GPT3_BAND) * (num_layers // 2)
    return _shape(num_layers, num_heads, width, head_width=head_width, window=window, **GPT3)


# sizes for a user's text: the vocabulary comes from the tokenizer
SIZES: dict[str, dict[str, Any]] = {
    "toy": _shape(2, 2, 64, context_length=64, **MODERN),
    "tiny": _shape(4, 2, 128, context_length=128, **MODERN),
    "small": _shape(6, 4, 256, context_length=256, **MODERN),
    "medium": _shape(6, 6, 384, context_length=256, **MODERN),
    "base": _shape(12, 12, 768, context_length=1024, **MODERN),
}

# published shapes, vocabulary included
PUBLISHED: dict[str, dict[str, Any]] = {
    # Radford et al. 2018; 40,478 tokens, norm after the sublayer
    "gpt1": _shape(12, 12, 768, context_length=512, vocab_size=40478, norm_placement="post"),
    # Radford et al. 2019, table 2
    "gpt2": _shape(12, 12, 768, **GPT2),
    "gpt2-medium": _shape(24, 16, 1024, **GPT2),
    "gpt2-large": _shape(36, 20, 1280, **GPT2),
    "gpt2-xl": _shape(48, 25, 1600, **GPT2),
    "gpt3-small": _gpt3(12, 12, 768, 64),
    "gpt3-medium": _gpt3(24, 16, 1024, 64),
    "gpt3-large": _gpt3(24, 16, 1536, 96),
    "gpt3-xl": _gpt3(24, 16, 2048, 128),  # the table lists 24 heads; 128 * 24 = 3072 and 1.3 billion contradict it
    "gpt3-2.7b": _gpt3(32, 32, 2560, 80),
    "gpt3-6.7b": _gpt3(32, 32, 4096, 128),
    "gpt3-13b": _gpt3(40, 40, 5120, 128),  # the table's width of 5140 is not 40 heads of 128
    "gpt3-175b": _gpt3(96, 96, 12288, 128),
}
ASSUMED_VOCABULARY = 8192  # while the training text, which determines the vocabulary, is not known
PRESETS = {**SIZES, **PUBLISHED}


def preset(name: str, presets: Mapping[str, dict[str, Any]] = PRESETS) -> dict[str, Any]:
    """The fields that a preset sets; an unknown name is a `ConfigError`."""
    if name not in tuple(presets):  # which need not be hashable
        raise ConfigError(f"unknown size '{name}'{did_you_mean(name, presets) or '; known: ' + ', '.join(presets)}")
    return dict(presets[name])


def preset_config(name: str, **overrides: Any) -> ModelConfig:
    """The checked configuration of a preset; the sizes for a user's text need `vocab_size`."""
    return make_section(ModelConfig, {**preset(name), **overrides}, "model")

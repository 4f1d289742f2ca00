"""The configuration of a translation run: the shape of an encoder-decoder, presets, and settings for pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from foretell.config.model import ModelConfig, Size
from foretell.config.section import Section, make_section, raise_first
from foretell.config.training import TokenizerConfig, TrainingConfig
from foretell.model.presets import MODERN, preset
from foretell.session.request import intervals


class EncoderDecoderConfig(ModelConfig):
    """The shape of an encoder-decoder. The fields of `ModelConfig` apply to the decoder and the encoder.

    encoder_layers: by default the number of decoder layers. source_vocab_size: None for a common vocabulary and
    embedding of both languages. rotate_cross_attention: if positions are rotary, use them in encoder-decoder
    attention too.
    """

    encoder_layers: int | None = Field(None, gt=0, le=2**14)
    source_vocab_size: Size | None = None
    rotate_cross_attention: bool = False

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        problems = {
            "an encoder-decoder has no window": any(window is not None for window in self.windows),
            "an encoder-decoder has no local_rope_theta": self.local_rope_theta is not None,
            "an encoder-decoder needs feedforward": self.feedforward == "none",
            "an encoder-decoder needs attention_residual": not self.attention_residual,
        }
        raise_first(problems)
        return self

    @property
    def has_rotated_memory(self) -> bool:
        return self.rotate_cross_attention and self.position == "rotary"

    @property
    def encoder(self) -> ModelConfig:
        """The shape of the encoder, as a decoder with these layers."""
        own = {key: value for key, value in self.model_dump().items() if key in ModelConfig.model_fields}
        layers, size = self.encoder_layers or self.num_layers, self.source_vocab_size or self.vocab_size
        return make_section(ModelConfig, {**own, "num_layers": layers, "vocab_size": size, "window": None})

    def training_flops_per_token(self, parameters: int) -> int:
        """3N: a token passes through half of the parameters, those for its language."""
        return 3 * parameters

    def replaced(self, **changes: Any) -> EncoderDecoderConfig:
        return EncoderDecoderConfig(**{**self.model_dump(), **changes})


BleuTokenizer = Literal["13a", "zh", "ja-mecab", "ko-mecab", "char"]


class PairConfig(Section):
    """Settings for making batches of sentence pairs."""

    validation_fraction: float = Field(0.02, ge=0, le=0.5)  # by a hash of the source sentence
    batch_tokens: int = Field(2048, ge=16)  # both languages; docs/translation-reference.md compares it with 4,096
    longest: int = Field(128, gt=0)  # tokens per sentence; pairs with a longer sentence are left out
    bleu_tokenizer: BleuTokenizer = "13a"  # sacrebleu's; a new run chooses it by the script of the targets


class TranslationConfig(Section):
    """The configuration of a training run of a translation model."""

    model: EncoderDecoderConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    pairs: PairConfig = PairConfig()
    training: TrainingConfig


VASWANI: dict[str, Any] = {
    "position": "sinusoidal",
    "norm_placement": "post",
    "activation": "relu",
    "scale_embeddings": True,
    "context_length": 256,
}
MODERN_PAIR: dict[str, Any] = {**MODERN, "context_length": 256, "rotate_cross_attention": True}


def _shape(num_layers: int, num_heads: int, width: int, **rest: Any) -> dict[str, Any]:
    return {"num_layers": num_layers, "encoder_layers": num_layers, "num_heads": num_heads, "width": width, **rest}


# The vocabulary comes from the tokenizer. vaswani-base: Vaswani et al. 2017, table 3
PRESETS: dict[str, dict[str, Any]] = {
    "toy": _shape(2, 2, 64, **MODERN_PAIR),
    "tiny": _shape(2, 2, 128, **MODERN_PAIR),
    "mini": _shape(3, 3, 192, **MODERN_PAIR),
    "small": _shape(3, 4, 256, **MODERN_PAIR),
    "base": _shape(6, 8, 512, **MODERN_PAIR),
    "vaswani-tiny": _shape(2, 2, 128, **VASWANI),
    "vaswani-small": _shape(3, 4, 256, **VASWANI),
    "vaswani-base": _shape(6, 8, 512, **VASWANI),
}

SIZES = ("toy", "tiny", "mini", "small", "base")  # candidates for a time budget


def shape_config(size: str, chosen: Mapping[str, Any], **sizes: Any) -> EncoderDecoderConfig:
    """The checked shape of a size, with the user's settings."""
    base = preset(size, PRESETS)
    if "num_layers" in chosen:
        base.pop("encoder_layers")
    return make_section(EncoderDecoderConfig, {**base, **sizes, **chosen}, "model")


# By width, the nearest one. Muon's rate at 256 was measured (docs/translation-reference.md), the others were not
RATES = {
    "muon": {64: 6e-3, 128: 5e-3, 192: 5e-3, 256: 6e-3, 512: 2e-3},
    "adamw": {64: 3e-3, 128: 2e-3, 256: 1e-3, 512: 7e-4},
}
MOMENTUM = 0.9  # of Muon; 0.95 learned less in 370 steps of small and in 480 of mini (ibid.)
WARMUPS = {"muon": 30, "adamw": 10}  # ratio of all steps to warm-up steps
DROPOUT_BY_EPOCHS = ((3.0, 0.0), (float("inf"), 0.1))
LABEL_SMOOTHING = 0.1  # Vaswani et al. 2017, section 5.4


def training_defaults(model: EncoderDecoderConfig, steps: int) -> dict[str, Any]:
    """The settings for a new model: AdamW for post-norm models, else Muon."""
    optimizer = "adamw" if model.norm_placement == "post" else "muon"
    rates = RATES[optimizer]
    return {
        "steps": steps,
        "optimizer": optimizer,
        "momentum": MOMENTUM,
        "learning_rate": rates[min(rates, key=lambda width: abs(width - model.width))],
        "schedule": "linear",
        "final_learning_rate_share": 0.0,
        "warmup_steps": min(200, max(1, steps // WARMUPS[optimizer])),
        "weight_decay": 0.1 if optimizer == "muon" else 0.01,
        "beta2": 0.99,  # 0.95, 0.98 and 0.995 learned less (ibid.)
        "label_smoothing": LABEL_SMOOTHING,
        "similar_vectors": not model.scale_embeddings,
        **intervals(steps),
    }

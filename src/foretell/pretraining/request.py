"""The request for a training on text: data, tokenizer, a model to continue from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from foretell.config.model import ModelConfig
from foretell.config.section import Section, make_section
from foretell.config.training import Config
from foretell.errors import ConfigError
from foretell.model.presets import preset
from foretell.pretraining.options import TextOptions
from foretell.pretraining.tokens import OLD_DOMAIN, OldDomain, Source
from foretell.session.request import TrainingRequest
from foretell.text import Tokenizer

MOST_WORKERS = 256
MOST_CONTEXT = 2048  # tokens; longer rows do not enlarge the context


@dataclass(frozen=True, kw_only=True)
class TextRequest(TextOptions, TrainingRequest):
    config_type: ClassVar[type[Section]] = Config

    source: Source
    names: list[str]  # names of the data as given by the user
    tokenizer: Tokenizer | None = None
    tokens: Path | None = None  # a token store to use instead of the source
    old_domain: OldDomain | None = None  # text of the model to continue from, to measure forgetting
    exportable: Callable[[ModelConfig], object] | None = None  # raises ConfigError for a model that cannot be converted

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            preset(self.size)
        self.configured("tokenizer"), self.configured("data")
        if self.size is not None or self.exportable is not None:
            self.check_exportable(self.model_config(self.size or "tiny", vocab_size=1))
        self._check_start()
        self._check_tokenizer()

    @property
    def described(self) -> list[str]:
        return self.names

    @property
    def choices(self) -> dict[str, Any]:
        return {OLD_DOMAIN: None if self.old_domain is None else self.old_domain.described}

    def _check_start(self) -> None:
        """Refuse to continue from a forecaster, or with a tokenizer other than the model's."""
        if self.start is None:
            return
        if any(part.kind == "series_codec" for part in self.start.model.parts.values()):
            raise ConfigError(f"{self.start.name} is a forecaster, which cannot start a training of text")
        if self.tokenizer is not None or self.tokenizer_settings:
            raise ConfigError(
                "--start-from takes the tokenizer of its model; leave out --tokenizer, --kind and their settings"
            )

    def _check_tokenizer(self) -> None:
        """Refuse settings for a tokenizer or tokens that are already given."""
        if not 1 <= self.workers <= MOST_WORKERS:
            raise ConfigError(f"workers must be 1 to {MOST_WORKERS}, not {self.workers}; give the number of cores")
        if self.tokens is not None and self.workers > 1:
            raise ConfigError("the data are tokens, so there is no text to encode; leave out --workers")
        if self.tokenizer is not None and self.tokenizer_settings:
            raise ConfigError("a tokenizer is given, so there is none to make; leave out tokenizer settings (--kind)")
        if self.tokens is not None and (self.section("tokenizer") or "validation_fraction" in self.section("data")):
            raise ConfigError(
                "the data are tokens, made and split already; leave out tokenizer and validation settings"
            )

    @property
    def tokenizer_settings(self) -> list[str]:
        """The user's settings for making a tokenizer; a start token can be chosen for any tokenizer."""
        return [key for key in self.section("tokenizer") if key != "start_token"]

    @property
    def given_tokenizer(self) -> Tokenizer | None:
        """The tokenizer to use, None if one is to be made."""
        return self.tokenizer_with(self.configured("tokenizer").start_token)

    def tokenizer_with(self, start_token: str | None) -> Tokenizer | None:
        """The given tokenizer with this start token; None if none is given."""
        tokenizer = self.tokenizer if self.start is None else self.start.tokenizer
        return tokenizer if tokenizer is None or start_token is None else tokenizer.with_start(start_token)

    def model_config(self, size: str, vocab_size: int, row: int = 0) -> ModelConfig:
        """The shape of a size, changed by what the user set; the vocabulary is the tokenizer's.

        The context of a new model is long enough for a row of `row` tokens, up to MOST_CONTEXT.
        """
        chosen = self.section("model")
        if self.start is not None:
            return make_section(ModelConfig, {**self.start.config.model_dump(), **chosen}, "model")
        base = preset(size)
        if "width" in chosen or "num_heads" in chosen:  # the size's head width follows from its width and heads
            base.pop("head_width", None)
        if base["context_length"] < row <= MOST_CONTEXT:
            base["context_length"] = row
        config = make_section(ModelConfig, {**base, "vocab_size": vocab_size, **chosen}, "model")
        if config.vocab_size < vocab_size:
            raise ConfigError(
                f"model.vocab_size {config.vocab_size} is below the tokenizer's {vocab_size}; leave it out"
            )
        return config

    def check_exportable(self, model: ModelConfig) -> None:
        if self.exportable is not None:
            self.exportable(model)

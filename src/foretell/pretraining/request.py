"""What a user asked for, and the configuration that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell.config import (
    ALIASES,
    Config,
    DataConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
    check_known,
    make_section,
)
from foretell.convert.families import check_expressible, find_family
from foretell.device import DeviceName, DtypeName
from foretell.errors import ConfigError
from foretell.model.presets import preset
from foretell.pretraining.plan import choose_dropout
from foretell.pretraining.prepare import Source
from foretell.pretraining.recipe import continued_defaults, training_defaults
from foretell.pretraining.start import Start
from foretell.text import Tokenizer

SECTIONS = tuple(Config.model_fields)
RESUMABLE = {("training", "accumulation")}  # decides how much memory a step takes, not what it does


@dataclass(frozen=True)
class Request:
    """What to train on what. Whatever is None or absent is chosen; `overrides` holds sections of a configuration."""

    source: Source
    described: list[str]  # the data as the user named it
    out: Path
    size: str | None = None
    minutes: float | None = None
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    tokens: Path | None = None  # a token store to use instead of the source
    start: Start | None = None  # a model to go on from: its weights, shape and tokenizer
    exportable: str | None = None  # the family that the model must be able to leave as
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"

    def __post_init__(self) -> None:
        for section in self.overrides:
            check_known(section, SECTIONS, "configuration section")
        if self.size is not None:
            preset(self.size)
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise ConfigError(f"minutes must be a positive number, not {self.minutes}")
        if self.minutes is not None and self.steps is not None:
            raise ConfigError("minutes and steps both say how long to train; give one of them")
        self._check_early()

    def _check_early(self) -> None:
        """What can be refused before any work is done."""
        self.tokenizer_config(), self.data_config()
        for name, section in (("model", ModelConfig), ("training", TrainingConfig)):
            for key in self.section(name):
                check_known(key, tuple(section.model_fields), f"key in {name}:")
        if self.size is not None or self.exportable is not None:
            self.check_exportable(self.model_config(self.size or "tiny", vocab_size=1))
        if self.start is not None:
            self._check_start()
        if self.tokenizer is not None and self.section("tokenizer"):
            raise ConfigError("a tokenizer is given, so there is none to make; leave out tokenizer settings (--kind)")
        if self.tokens is not None and (self.section("tokenizer") or "validation_fraction" in self.section("data")):
            raise ConfigError(
                "the data are tokens, made and split already; leave out tokenizer and validation settings"
            )

    def _check_start(self) -> None:
        """A model to go on from has its own shape and tokenizer."""
        if self.size is not None:
            raise ConfigError("--from takes the size of its model; leave out --size")
        if self.tokenizer is not None or self.section("tokenizer"):
            raise ConfigError(
                "--from takes the tokenizer of its model; leave out --tokenizer, --kind and their settings"
            )
        others = [key for key in self.section("model") if key != "dropout"]
        if others:
            raise ConfigError(
                f"--from takes the shape of its model; leave out model.{others[0]}, only dropout can change"
            )

    @property
    def given_tokenizer(self) -> Tokenizer | None:
        """The tokenizer that is to be used, where none is to be made."""
        return self.tokenizer if self.start is None else self.start.tokenizer

    @property
    def given_size(self) -> str | None:
        """What the size is called, where none is to be chosen."""
        return self.size if self.start is None else self.start.name

    @property
    def steps(self) -> int | None:
        """The number of steps, where the user fixed it."""
        values = self.section("training")
        return None if values.get("steps") is None else make_section(TrainingConfig, values, "training").steps

    def section(self, name: str) -> dict[str, Any]:
        """What the user set in a section, under our names for the fields."""
        values = {key.replace("-", "_"): value for key, value in self.overrides.get(name, {}).items()}
        return {ALIASES.get(key, key): value for key, value in values.items()}

    def tokenizer_config(self) -> TokenizerConfig:
        """How to make a tokenizer."""
        return make_section(TokenizerConfig, self.section("tokenizer"), "tokenizer")

    def data_config(self) -> DataConfig:
        """How to read and split the data."""
        return make_section(DataConfig, self.section("data"), "data")

    def model_config(self, size: str, vocab_size: int) -> ModelConfig:
        """The shape: the size's, changed by what the user set; the vocabulary is the tokenizer's."""
        chosen = self.section("model")
        if self.start is not None:
            return make_section(ModelConfig, {**self.start.config.model_dump(), **chosen}, "model")
        base = preset(size)
        if "width" in chosen or "num_heads" in chosen:  # what would follow from them follows from the new ones
            base.pop("head_width", None)
        config = make_section(ModelConfig, {**base, "vocab_size": vocab_size, **chosen}, "model")
        if config.vocab_size < vocab_size:
            raise ConfigError(
                f"model.vocab_size {config.vocab_size} is below the tokenizer's {vocab_size}; leave it out"
            )
        return config

    def probed_config(self, size: str, vocab_size: int) -> ModelConfig:
        """The shape whose speed decides about the steps, with the dropout that it will most likely have."""
        model = self.model_config(size, vocab_size)
        return model if "dropout" in self.section("model") else model.replaced(dropout=choose_dropout(epochs=5))

    def check_exportable(self, model: ModelConfig) -> None:
        """Refuse a shape that cannot be exported as was asked."""
        if self.exportable is not None:
            check_expressible(model, find_family(self.exportable))

    def training_config(self, size: str, model: ModelConfig, steps: int) -> TrainingConfig:
        """How to train: defaults for the size and the steps, changed by what the user set."""
        chosen = self.section("training")
        make_section(TrainingConfig, {**chosen, "steps": steps}, "training")  # right before anything depends on it
        if self.start is None:
            defaults = training_defaults(size, model, steps, chosen)
        else:
            defaults = continued_defaults(model, steps, chosen)
        values = {**defaults, **chosen, "steps": steps}
        return make_section(TrainingConfig, values, "training")

    def config(self, size: str, vocab_size: int, steps: int, train_tokens: int) -> Config:
        """The whole configuration, once size and steps are known."""
        model = self.model_config(size, vocab_size)
        self.check_exportable(model)
        training = self.training_config(size, model, steps)
        if "dropout" not in self.section("model"):
            epochs = steps * training.batch_size * model.context_length / train_tokens
            model = model.replaced(dropout=choose_dropout(epochs))
        return Config(model=model, tokenizer=self.tokenizer_config(), data=self.data_config(), training=training)

    def check_unchanged(self, config: Config, size: str) -> None:
        """Refuse settings that differ from those a run was started with, since it would no longer be the same run."""
        if self.size not in (None, size):
            raise ConfigError(self._changed("size", size, self.size))
        for name in self.overrides:
            old = getattr(config, name)
            new = make_section(type(old), {**old.model_dump(), **self.section(name)}, name)
            for key in type(old).model_fields:
                if getattr(new, key) != getattr(old, key) and (name, key) not in RESUMABLE:
                    raise ConfigError(self._changed(f"{name}.{key}", getattr(old, key), getattr(new, key)))

    def check_same_data(self, data: list[str], tokenizer: Tokenizer) -> None:
        """Refuse data or a tokenizer that a run was not started with; saying nothing about them is fine."""
        if self.described not in ([], data):
            raise ConfigError(self._changed("data", ", ".join(data), ", ".join(self.described)))
        given = self.given_tokenizer
        if given is not None and given.fingerprint != tokenizer.fingerprint:
            raise ConfigError(self._changed("tokenizer", tokenizer.fingerprint, given.fingerprint))

    def check_same_start(self, record: dict[str, Any] | None) -> None:
        """Refuse another model to go on from than a run was started with; saying nothing about it is fine."""
        if self.start is not None and (record is None or record["weights_sha256"] != self.start.digest):
            raise ConfigError(self._changed("from", record and record["model"], self.start.argument))

    def _changed(self, what: str, old: Any, new: Any) -> str:
        return (
            f"{self.out} was started with {what} = {old}, not {new}; leave it out to resume, or start anew with "
            "another --out"
        )

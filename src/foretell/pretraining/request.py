"""What a user asked for: data, model, settings. It is checked before any work is done."""

from __future__ import annotations

import shlex
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
    translate_training_input,
)
from foretell.convert.families import check_expressible, find_family
from foretell.device import DeviceName, DtypeName
from foretell.errors import ConfigError
from foretell.model.presets import preset
from foretell.pretraining.old_domain import OLD_DOMAIN, OldDomain
from foretell.pretraining.tokens import Source
from foretell.runs.run import RESUMABLE
from foretell.session.failures import command_name
from foretell.start import Start
from foretell.text import Tokenizer

MOST_MINUTES = 10 * 525_600
MOST_WORKERS = 256
SECTIONS = tuple(Config.model_fields)


def how_to_extend(run: Path) -> str:
    """How a run is trained beyond its last step."""
    return f"to train it further: {command_name()} train DATA --from {shlex.quote(str(run))}"


@dataclass(frozen=True)
class Request:
    """What to train on what data. `overrides` holds sections of a configuration; fields left open are chosen later."""

    source: Source
    described: list[str]  # the data as the user named it
    out: Path
    size: str | None = None
    minutes: float | None = None
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    tokens: Path | None = None  # a token store to use instead of the source
    start: Start | None = None  # a model to continue from: its weights, shape and tokenizer
    old_domain: OldDomain | None = None  # of the model to continue from, to measure what is forgotten
    exportable: str | None = None  # the family that the model must be convertible to
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"
    workers: int = 1  # processes that encode the text
    verb: str = "train"  # of the command line, which resumes the run

    def __post_init__(self) -> None:
        for section in self.overrides:
            check_known(section, SECTIONS, "configuration section")
        if self.size is not None:
            preset(self.size)
        if self.minutes is not None and not 0 < self.minutes <= MOST_MINUTES:
            raise ConfigError(
                f"minutes must be a positive number of at most {MOST_MINUTES:,} (ten years), not {self.minutes:g}"
            )
        if self.minutes is not None and self.steps is not None:
            raise ConfigError("minutes and steps both say how long to train; give one of them")
        self._check_sections()
        self._check_start()
        self._check_tokenizer()

    def _check_sections(self) -> None:
        """Refuse unknown keys, and a shape that cannot be exported as asked."""
        self.tokenizer_config(), self.data_config()
        for name, section in (("model", ModelConfig), ("training", TrainingConfig)):
            for key in self.section(name):
                check_known(key, tuple(section.model_fields), f"key in {name}:")
        if self.size is not None or self.exportable is not None:
            self.check_exportable(self.model_config(self.size or "tiny", vocab_size=1))

    def _check_start(self) -> None:
        """Refuse a size, shape or tokenizer next to a model to continue from, which has its own."""
        if self.start is None:
            return
        if self.size is not None:
            raise ConfigError("--from takes the size of its model; leave out --size")
        if self.tokenizer is not None or self.tokenizer_settings:
            raise ConfigError(
                "--from takes the tokenizer of its model; leave out --tokenizer, --kind and their settings"
            )
        others = [key for key in self.section("model") if key != "dropout"]
        if others:
            raise ConfigError(
                f"--from takes the shape of its model; leave out model.{others[0]}, only dropout can change"
            )

    def _check_tokenizer(self) -> None:
        """Refuse settings of a tokenizer, or of its data, where they are given already."""
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
        """What the user set about making a tokenizer; a start token can be chosen for any."""
        return [key for key in self.section("tokenizer") if key != "start_token"]

    @property
    def given_tokenizer(self) -> Tokenizer | None:
        """The tokenizer to use, None if one is to be made."""
        return self.tokenizer_with(self.tokenizer_config().start_token)

    def tokenizer_with(self, start_token: str | None) -> Tokenizer | None:
        """The tokenizer given, with a start token chosen for it; None if none is given."""
        tokenizer = self.tokenizer if self.start is None else self.start.tokenizer
        return tokenizer if tokenizer is None or start_token is None else tokenizer.with_start(start_token)

    @property
    def given_size(self) -> str | None:
        """The name of the size, None if one is to be chosen."""
        return self.size if self.start is None else self.start.name

    @property
    def steps(self) -> int | None:
        """The number of steps, None if it is to be chosen."""
        values = self.section("training")
        return None if values.get("steps") is None else make_section(TrainingConfig, values, "training").steps

    def section(self, name: str) -> dict[str, Any]:
        """What the user set in a section, under our names for the fields."""
        values = self.overrides.get(name, {})
        if name == "training":
            return translate_training_input(values)
        named = {key.replace("-", "_"): value for key, value in values.items()}
        return {ALIASES.get(key, key): value for key, value in named.items()}

    def tokenizer_config(self) -> TokenizerConfig:
        """How to make a tokenizer."""
        return make_section(TokenizerConfig, self.section("tokenizer"), "tokenizer")

    def data_config(self) -> DataConfig:
        """How to read and split the data."""
        return make_section(DataConfig, self.section("data"), "data")

    def model_config(self, size: str, vocab_size: int) -> ModelConfig:
        """The shape of a size, changed by what the user set; the vocabulary is the tokenizer's."""
        chosen = self.section("model")
        if self.start is not None:
            return make_section(ModelConfig, {**self.start.config.model_dump(), **chosen}, "model")
        base = preset(size)
        if "width" in chosen or "num_heads" in chosen:  # the size's head width follows from its own
            base.pop("head_width", None)
        config = make_section(ModelConfig, {**base, "vocab_size": vocab_size, **chosen}, "model")
        if config.vocab_size < vocab_size:
            raise ConfigError(
                f"model.vocab_size {config.vocab_size} is below the tokenizer's {vocab_size}; leave it out"
            )
        return config

    def check_exportable(self, model: ModelConfig) -> None:
        """Refuse a shape that cannot be exported as asked."""
        if self.exportable is not None:
            check_expressible(model, find_family(self.exportable))

    # --- resuming ----------------------------------------------------------------------------------------------------

    def check_not_extended(self, steps: int, done: int) -> None:
        """Refuse more steps than the run was started with: the learning rate has followed its schedule to the end."""
        if self.steps is not None and self.steps > steps:
            state, more = "finished" if done >= steps else "to end", self.steps - steps
            raise ConfigError(
                f"{self.out} is {state} after {steps:,} steps, where its schedule ends; "
                f"{how_to_extend(self.out)} --steps {more}"
            )

    def check_same_run(self, config: Config, record: dict[str, Any], tokenizer: Tokenizer) -> None:
        """Refuse settings, data or models other than those the run was started with; left out, they stay the same."""
        self._check_same_settings(config, record["size"])
        self.check_exportable(config.model)
        if self.described not in ([], record["data"]):
            raise ConfigError(self._changed("data", ", ".join(record["data"]), ", ".join(self.described)))
        if self.old_domain is not None and self.old_domain.described != record.get(OLD_DOMAIN):
            raise ConfigError(self._changed("old domain", record.get(OLD_DOMAIN), self.old_domain.described))
        given, start = self.tokenizer_with(config.tokenizer.start_token), record.get("from")
        if given is not None and given.fingerprint != tokenizer.fingerprint:
            raise ConfigError(self._changed("tokenizer", tokenizer.fingerprint, given.fingerprint))
        if self.start is not None and (start is None or start["weights_sha256"] != self.start.digest):
            raise ConfigError(self._changed("from", start and start["model"], self.start.argument))

    def _check_same_settings(self, config: Config, size: str) -> None:
        if self.size not in (None, size):
            raise ConfigError(self._changed("size", size, self.size))
        for name in self.overrides:
            old = getattr(config, name)
            new = make_section(type(old), {**old.model_dump(), **self.section(name)}, name)
            for key in type(old).model_fields:
                if getattr(new, key) != getattr(old, key) and not (name == "training" and key in RESUMABLE):
                    raise ConfigError(self._changed(f"{name}.{key}", getattr(old, key), getattr(new, key)))

    def _changed(self, what: str, old: Any, new: Any) -> str:
        return (
            f"{self.out} was started with {what} = {old}, not {new}; leave it out to resume, or start again with "
            "another --out"
        )

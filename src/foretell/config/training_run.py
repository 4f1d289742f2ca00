"""`Config`: the configuration of one whole training run, and the TOML file that holds it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from foretell.config.data import DataConfig, TokenizerConfig
from foretell.config.model import ModelConfig
from foretell.config.section import Section, raise_first
from foretell.config.training import TrainingConfig
from foretell.errors import ConfigError


class Config(Section):
    """One whole training run."""

    model: ModelConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig

    @property
    def window_length(self) -> int:
        """Tokens per row of training, at most."""
        return self.data.window_length or self.model.context_length

    @model_validator(mode="after")
    def _check(self) -> Self:
        window, context = self.data.window_length or 0, self.model.context_length
        raise_first({f"data.window_length {window} is above model.context_length {context}": window > context})
        return self


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from None

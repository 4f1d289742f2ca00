"""Reading TOML files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from foretell.errors import ConfigError
from foretell.storage.files import JSON_LIMIT, read_bytes


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked."""
    try:
        return parse_toml(read_bytes(path, JSON_LIMIT, ConfigError, follow_links=True).decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}") from None
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text in TOML, unchecked. Raises ConfigError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(error)) from None
    except RecursionError:
        raise ConfigError("brackets are nested too deeply") from None
    except ValueError:  # the limit of int
        raise ConfigError("a number has too many digits") from None

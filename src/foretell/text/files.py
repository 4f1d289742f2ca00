"""Read the files that a tokenizer comes in. Every bad one is one TokenizerError that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foretell.errors import TokenizerError, did_you_mean


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} is not a JSON object; get it again, or name the right file")
    return content


def read_object_if_there(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file."""
    return read_object(path) if path.exists() else {}


def read_vocabulary(path: Path) -> dict[str, int]:
    """A JSON object of token to id."""
    content = read_json(path)
    if not isinstance(content, dict) or not content or any(type(number) is not int for number in content.values()):
        raise TokenizerError(f"{path} is not a vocabulary; it must be a JSON object of token to id")
    return content


def read_merges(path: Path) -> list[list[str]]:
    """The pairs of a merges.txt, in order."""
    merges = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise TokenizerError(f"{path}, line {number}: a merge is two tokens with one space, not {line[:60]!r}")
        merges.append(pair)
    return merges


def read_json(path: Path) -> Any:
    """Whatever the JSON of a file holds."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TokenizerError(f"{path} is not valid JSON ({reason}); it may be cut short, get it again") from error


def read_text(path: Path) -> str:
    """The text of a file, strictly UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        beside = [entry.name for entry in path.parent.glob("*")] if path.parent.is_dir() else []
        raise TokenizerError(f"{path} does not exist{did_you_mean(path.name, beside)}") from error
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or a NUL in the path itself
        raise TokenizerError(f"{path} is not a text file in UTF-8: {error}") from error

"""Parse the files that a tokenizer comes in, each one alone. A bad file is one TokenizerError that names it.

Besides the vocabulary these are tokenizer_config.json, special_tokens_map.json, added_tokens.json,
generation_config.json, config.json and chat_template.jinja, as transformers writes them. Any of them may be missing.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import TokenizerError, did_you_mean
from foretell.files import JSON_LIMIT, TEMPLATE_LIMIT, VOCABULARY_LIMIT, read_bytes
from foretell.text.tokenizer_json import TokenizerJson, special_token

CHAT_TEMPLATE = "chat_template.jinja"  # the name that transformers looks for
SPECIALS = ("additional_special_tokens", "extra_special_tokens")

# --- any file --------------------------------------------------------------------------------------------------------


def read_object(path: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """A JSON object."""
    content = read_json(path, limit)
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} is not a JSON object; get it again, or name the right file")
    return content


def read_object_if_present(path: Path) -> dict[str, Any]:
    """A JSON object, empty if the file does not exist."""
    return read_object(path) if os.path.lexists(path) else {}


def read_json(path: Path, limit: int) -> Any:
    """Any JSON value."""
    text = read_text(path, limit)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TokenizerError(f"{path} is not valid JSON ({reason}); it may be cut short, get it again") from error


def read_text(path: Path, limit: int) -> str:
    """The text of a file of at most `limit` bytes, strictly UTF-8."""
    try:
        return read_bytes(path, limit, TokenizerError).decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError as error:
        siblings = [entry.name for entry in path.parent.glob("*")] if path.parent.is_dir() else []
        raise TokenizerError(f"{path} does not exist{did_you_mean(path.name, siblings)}") from error
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or a NUL in the path itself
        raise TokenizerError(f"{path} is not a text file in UTF-8: {error}") from error


def read_chat_template_file(path: Path) -> str | None:
    """A chat template in a file of its own, None if the file does not exist."""
    return read_text(path, TEMPLATE_LIMIT) if os.path.lexists(path) else None


# --- vocab.json and merges.txt ---------------------------------------------------------------------------------------


def read_vocabulary(path: Path) -> dict[str, int]:
    """A JSON object of token to id."""
    content = read_json(path, VOCABULARY_LIMIT)
    if not isinstance(content, dict) or not content or any(type(token_id) is not int for token_id in content.values()):
        raise TokenizerError(f"{path} is not a vocabulary; it must be a JSON object of token to id")
    return content


def read_merges(path: Path) -> list[list[str]]:
    """The pairs of a merges.txt, in order."""
    merges = []
    for line_number, line in enumerate(read_text(path, VOCABULARY_LIMIT).split("\n"), start=1):
        if not line or (line_number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise TokenizerError(f"{path}, line {line_number}: a merge is two tokens with one space, not {line[:60]!r}")
        merges.append(pair)
    return merges


# --- the settings next to the vocabulary -----------------------------------------------------------------------------


@dataclass(frozen=True)
class DeclaredTokens:
    """What the settings files of a directory declare about its tokenizer.

    start, end: the names of the tokens, or None. specials: names of further special tokens. added: entries of added
    tokens. ends: (file, id) of each token that ends a generation. adds_start: whether the start token goes before
    every text, None if no file says so.
    """

    tokenizer_class: str | None
    start: str | None
    end: str | None
    specials: tuple[str, ...]
    added: tuple[TokenizerJson, ...]
    ends: tuple[tuple[str, int], ...]
    adds_start: bool | None
    prefix_space: bool
    model_type: str | None


def read_declared_tokens(directory: Path) -> DeclaredTokens:
    """Read all settings files of a directory. TokenizerError: one of them cannot be read."""
    settings = read_object_if_present(directory / "tokenizer_config.json")
    special_map = read_object_if_present(directory / "special_tokens_map.json")
    config = read_object_if_present(directory / "config.json")
    files = (settings, special_map)
    return DeclaredTokens(
        tokenizer_class=_text(settings.get("tokenizer_class")) or _text(config.get("tokenizer_class")),
        start=_first_name("bos_token", files),
        end=_first_name("eos_token", files),
        specials=tuple(name for file in files for key in SPECIALS for name in _names(file.get(key))),
        added=_added(directory, settings),
        ends=_ends(directory, config),
        adds_start=settings["add_bos_token"] if isinstance(settings.get("add_bos_token"), bool) else None,
        prefix_space=settings.get("add_prefix_space") is True,
        model_type=_text(config.get("model_type")),
    )


def read_chat_template(directory: Path) -> tuple[str | None, list[str]]:
    """The chat template, from its own file or tokenizer_config.json, and notes on those that are left out."""
    if (template := read_chat_template_file(directory / CHAT_TEMPLATE)) is not None:
        return template, []
    content = read_object_if_present(directory / "tokenizer_config.json").get("chat_template")
    if not isinstance(content, list):
        return _text(content), []
    entries = [entry for entry in content if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
    templates = {entry["name"]: _text(entry.get("template")) for entry in entries}
    others = [name for name in templates if name != "default"]
    notes = [f"of the chat templates only 'default' is kept, not {', '.join(others)}"] if others else []
    return templates.get("default"), notes


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _name(token: Any) -> str | None:
    """A token is written as its text, or as an object with its text."""
    return _text(token.get("content")) if isinstance(token, dict) else _text(token)


def _names(tokens: Any) -> list[str]:
    values = tokens.values() if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else ()
    return [name for name in map(_name, values) if name is not None]


def _first_name(key: str, files: tuple[dict[str, Any], ...]) -> str | None:
    return next((name for file in files if (name := _name(file.get(key))) is not None), None)


def _added(directory: Path, settings: dict[str, Any]) -> tuple[TokenizerJson, ...]:
    """The entries of added_tokens_decoder and the further ones of added_tokens.json, in order of their ids."""
    entries: dict[str, TokenizerJson] = {}
    decoder = settings.get("added_tokens_decoder")
    for token_id, token in (decoder if isinstance(decoder, dict) else {}).items():
        name = _name(token)
        if name is None or not str(token_id).isdecimal():
            raise TokenizerError(
                f"{directory / 'tokenizer_config.json'}: its added_tokens_decoder has {str(token_id)[:40]!r}: "
                f"{str(token)[:60]!r}, which is not a token; get the file again"
            )
        flags = {key: value for key, value in token.items() if type(value) is bool} if isinstance(token, dict) else {}
        entries[name] = special_token(name, int(token_id)) | {"special": False} | flags
    for name, token_id in read_object_if_present(directory / "added_tokens.json").items():
        if type(token_id) is not int:
            raise TokenizerError(f"{directory / 'added_tokens.json'}: the id of {name[:60]!r} is not a number")
        entries.setdefault(name, special_token(name, token_id) | {"special": False, "normalized": True})
    return tuple(sorted(entries.values(), key=lambda entry: entry["id"]))


def _ends(directory: Path, config: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    """The end ids of generation_config.json, as transformers uses when it generates; else those of config.json."""
    generation = read_object_if_present(directory / "generation_config.json")
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        value = content.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if ids:
            return tuple((name, token_id) for token_id in ids if type(token_id) is int)
    return ()

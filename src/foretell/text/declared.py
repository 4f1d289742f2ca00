"""What the files beside a vocabulary say: added tokens, start and end tokens, the class, the chat template.

They are tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json, config.json and
chat_template.jinja, as transformers writes them. Any of them may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import TokenizerError
from foretell.text.backend import Document
from foretell.text.documents import special_token
from foretell.text.files import read_object_if_there, read_text
from foretell.text.tokenizer import CHAT_TEMPLATE

SPECIALS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True)
class Declared:
    """What the files of a directory say beside its vocabulary.

    start, end: the names of the tokens, or None. specials: names of further special tokens. added: entries of added
    tokens. ends: (file, id) of each token that ends a generation. adds_start: whether the start token goes before
    every text, None where nothing is said.
    """

    tokenizer_class: str | None
    start: str | None
    end: str | None
    specials: tuple[str, ...]
    added: tuple[Document, ...]
    ends: tuple[tuple[str, int], ...]
    adds_start: bool | None
    prefix_space: bool
    model_type: str | None


def read_declared(directory: Path) -> Declared:
    """All that the files beside the vocabulary say. TokenizerError: one of them cannot be read."""
    settings = read_object_if_there(directory / "tokenizer_config.json")
    named = read_object_if_there(directory / "special_tokens_map.json")
    config = read_object_if_there(directory / "config.json")
    both = (settings, named)
    return Declared(
        tokenizer_class=_text(settings.get("tokenizer_class")) or _text(config.get("tokenizer_class")),
        start=_first_name("bos_token", both),
        end=_first_name("eos_token", both),
        specials=tuple(name for one in both for key in SPECIALS for name in _names(one.get(key))),
        added=_added(directory, settings),
        ends=_ends(directory, config),
        adds_start=settings["add_bos_token"] if isinstance(settings.get("add_bos_token"), bool) else None,
        prefix_space=settings.get("add_prefix_space") is True,
        model_type=_text(config.get("model_type")),
    )


def read_chat_template(directory: Path) -> tuple[str | None, list[str]]:
    """The chat template, from its own file or tokenizer_config.json, and notes on those that are left out."""
    if (directory / CHAT_TEMPLATE).exists():
        return read_text(directory / CHAT_TEMPLATE), []
    content = read_object_if_there(directory / "tokenizer_config.json").get("chat_template")
    if not isinstance(content, list):
        return _text(content), []
    templates = {one.get("name"): _text(one.get("template")) for one in content if isinstance(one, dict)}
    others = [str(name) for name in templates if name != "default"]
    notes = [f"of the chat templates only 'default' is kept, not {', '.join(others)}"] if others else []
    return templates.get("default"), notes


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _name(token: Any) -> str | None:
    """A token is written as its text, or as an object that has its text."""
    return _text(token.get("content")) if isinstance(token, dict) else _text(token)


def _names(tokens: Any) -> list[str]:
    values = tokens.values() if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else ()
    return [name for name in map(_name, values) if name is not None]


def _first_name(key: str, files: tuple[dict[str, Any], ...]) -> str | None:
    return next((name for one in files if (name := _name(one.get(key))) is not None), None)


def _added(directory: Path, settings: dict[str, Any]) -> tuple[Document, ...]:
    """The entries of added_tokens_decoder, and of added_tokens.json where that has more, in order of their ids."""
    entries: dict[str, Document] = {}
    decoder = settings.get("added_tokens_decoder")
    for number, token in (decoder if isinstance(decoder, dict) else {}).items():
        name = _name(token)
        if name is None or not str(number).isdecimal():
            raise TokenizerError(
                f"{directory / 'tokenizer_config.json'}: its added_tokens_decoder has {str(number)[:40]!r}: "
                f"{str(token)[:60]!r}, which is no token; get the file again"
            )
        flags = {key: value for key, value in token.items() if type(value) is bool} if isinstance(token, dict) else {}
        entries[name] = special_token(name, int(number)) | {"special": False} | flags
    for name, number in read_object_if_there(directory / "added_tokens.json").items():
        if type(number) is not int:
            raise TokenizerError(f"{directory / 'added_tokens.json'}: the id of {name[:60]!r} is no number")
        entries.setdefault(name, special_token(name, number) | {"special": False, "normalized": True})
    return tuple(sorted(entries.values(), key=lambda entry: entry["id"]))


def _ends(directory: Path, config: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    """generation_config.json counts, as it does where transformers generates; config.json where it says nothing."""
    generation = read_object_if_there(directory / "generation_config.json")
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        value = content.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if ids:
            return tuple((name, number) for number in ids if type(number) is int)
    return ()

"""Read a tokenizer from disk. Every bad file is one TokenizerError that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foretell.errors import TokenizerError, did_you_mean
from foretell.text import structure
from foretell.text.backend import Document
from foretell.text.documents import byte_level_document, byte_level_split, special_token
from foretell.text.tokenizer import Tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, or in a checkpoint directory.

    A directory holds tokenizer.json, with the end token that tokenizer_config.json or special_tokens_map.json may
    name, or GPT-2's vocab.json and merges.txt. Raises TokenizerError for whatever is missing or cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        return Tokenizer(_read_object(path), origin=str(path))
    if (path / "tokenizer.json").exists():
        return _load_directory(path)
    if (path / "vocab.json").exists() and (path / "merges.txt").exists():
        _refuse_other_class(path)
        return gpt2_tokenizer(path / "vocab.json", path / "merges.txt")
    raise TokenizerError(f"{path} holds no tokenizer; it needs tokenizer.json, or vocab.json and merges.txt")


def gpt2_tokenizer(vocab_file: str | Path, merges_file: str | Path) -> Tokenizer:
    """GPT-2's tokenizer from its two files (vocab.json and merges.txt, or encoder.json and vocab.bpe at OpenAI).

    Raises TokenizerError where one is missing, cannot be read, or does not fit the other.
    """
    vocabulary = _read_json(Path(vocab_file))
    if not _is_vocabulary(vocabulary):
        raise TokenizerError(f"{vocab_file} is not a vocabulary; it must be a JSON object of token to id")
    document = byte_level_document(vocabulary, _read_merges(Path(merges_file)), byte_level_split(use_regex=True))
    return Tokenizer(document, origin=f"{vocab_file} with {Path(merges_file).name}")


def _is_vocabulary(content: Any) -> bool:
    return isinstance(content, dict) and len(content) > 0 and all(type(number) is int for number in content.values())


def _load_directory(path: Path) -> Tokenizer:
    origin = str(path / "tokenizer.json")
    tokenizer = Tokenizer(_read_object(path / "tokenizer.json"), origin)
    named = _named_end(path)
    if named is None or tokenizer.special_tokens.get(named) == tokenizer.end_id is not None:
        return tokenizer
    return Tokenizer(_ending_with(tokenizer.document(), named, path), origin)


def _ending_with(document: Document, end: str, path: Path) -> Document:
    """The document with `end` special and declared as its end token; TokenizerError where it has no such token."""
    if end not in structure.special_tokens(document):
        number = structure.token_id(document, end)
        if number is None:
            raise TokenizerError(f"{path}: its end token {end!r} is not in tokenizer.json; one of the files is wrong")
        others = [token for token in document["added_tokens"] if token["content"] != end]
        document = {**document, "added_tokens": [*others, special_token(end, number)]}
    return structure.with_end(document, end)


def _named_end(path: Path) -> str | None:
    """The end token that the files beside a tokenizer.json name: a string, or an object with its content."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if not (path / name).exists():
            continue
        token = _read_object(path / name).get("eos_token")
        named = token.get("content") if isinstance(token, dict) else token
        if isinstance(named, str):
            return named
    return None


def _refuse_other_class(path: Path) -> None:
    """Qwen and RoBERTa keep the same two files but split text otherwise, which the files do not say."""
    config = path / "tokenizer_config.json"
    name = _read_object(config).get("tokenizer_class", "GPT2Tokenizer") if config.exists() else "GPT2Tokenizer"
    if name not in ("GPT2Tokenizer", "GPT2TokenizerFast"):
        raise TokenizerError(f"{path} has vocab.json and merges.txt of a {name}, not of GPT-2; it needs tokenizer.json")


def _read_object(path: Path) -> dict[str, Any]:
    content = _read_json(path)
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} is not a JSON object; get it again, or name the right file")
    return content


def _read_json(path: Path) -> Any:
    text = _read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TokenizerError(f"{path} is not valid JSON ({reason}); it may be cut short, get it again") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        beside = [entry.name for entry in path.parent.glob("*")] if path.parent.is_dir() else []
        raise TokenizerError(f"{path} does not exist{did_you_mean(path.name, beside)}") from error
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or a NUL in the path itself
        raise TokenizerError(f"{path} is not a text file in UTF-8: {error}") from error


def _read_merges(path: Path) -> list[list[str]]:
    lines = _read_text(path).split("\n")
    merges = []
    for number, line in enumerate(lines, start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise TokenizerError(f"{path}, line {number}: a merge is two tokens with one space, not {line[:60]!r}")
        merges.append(pair)
    return merges

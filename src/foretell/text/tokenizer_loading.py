"""Read a tokenizer from disk: a tokenizer.json, a directory as transformers writes it, or vocab.json and merges.txt.

The settings files of a directory may declare added tokens, start and end tokens and a chat template. If they contradict
tokenizer.json, tokenizer.json is used, and the tokenizer's `notes` mention it. A bad file is a TokenizerError that
names it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from foretell.errors import TokenizerError, as_path
from foretell.storage.files import TEMPLATE_LIMIT, VOCABULARY_LIMIT, read_json, read_text
from foretell.text import tokenizer_json
from foretell.text.tokenizer import CHAT_TEMPLATE, Tokenizer
from foretell.text.tokenizer_json import TokenizerJson

UNREADABLE = ("tokenizer.model", "tekken.json", "tiktoken.model")  # SentencePiece's and others' own formats
SPECIALS = ("additional_special_tokens", "extra_special_tokens")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, or in a directory as transformers writes it.

    A directory holds tokenizer.json, or vocab.json and merges.txt (GPT-2, Qwen2, Qwen3, OpenAI GPT). The files
    tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json, config.json and
    chat_template.jinja are read if they exist. Raises TokenizerError for files that are missing, unreadable or
    inconsistent. The last tokenizer is cached until its files change.
    """
    path = as_path("the tokenizer", path)
    files = sorted(path.iterdir()) if path.is_dir() else [path, path.parent / CHAT_TEMPLATE]
    statuses = [file.stat() for file in files if file.exists()]
    tokenizer = _load(path, tuple((status.st_ino, status.st_size, status.st_mtime_ns) for status in statuses))
    return tokenizer.with_chat_template(tokenizer.chat_template, tokenizer.notes)  # each copy notes names for itself


@lru_cache(maxsize=1)
def _load(path: Path, stamps: tuple[tuple[int, int, int], ...]) -> Tokenizer:
    """Load a tokenizer; `stamps` change with its files, for the cache."""
    if path.is_file() and path.suffix != ".json":
        raise TokenizerError(f"{path} is not a tokenizer; give a model or a tokenizer.json")
    if not path.is_dir():
        tokenizer = Tokenizer(read_json(path, VOCABULARY_LIMIT, TokenizerError), origin=str(path))
        return tokenizer.with_chat_template(_read_template_file(path.parent))
    if (path / "tokenizer.json").exists() or ((path / "vocab.json").exists() and (path / "merges.txt").exists()):
        return _load_directory(path)
    unreadable = next((name for name in UNREADABLE if (path / name).exists()), None)
    advice = f"; {unreadable} is not supported: save the tokenizer with transformers to get a tokenizer.json"
    needed = "it needs tokenizer.json, or vocab.json and merges.txt"
    raise TokenizerError(f"{path} holds no tokenizer; {needed}{advice if unreadable else ''}")


def has_tokenizer(directory: Path) -> bool:
    """True if a directory has a tokenizer file, supported or not."""
    names = ("tokenizer.json", "vocab.json", "merges.txt", *UNREADABLE)
    return any((directory / name).exists() for name in names)


def gpt2_tokenizer(vocab_file: str | Path, merges_file: str | Path) -> Tokenizer:
    """GPT-2's tokenizer from its two files (vocab.json and merges.txt; OpenAI calls them encoder.json and vocab.bpe).

    Raises TokenizerError if a file is missing, cannot be read, or does not match the other.
    """
    vocabulary, merges = (
        _read_vocabulary(as_path("vocab_file", vocab_file)),
        _read_merges(as_path("merges_file", merges_file)),
    )
    content = tokenizer_json.byte_level_json(vocabulary, merges, tokenizer_json.byte_level_split(use_regex=True))
    return Tokenizer(content, origin=f"{vocab_file} with {Path(merges_file).name}")


def _load_directory(path: Path) -> Tokenizer:
    settings, plain = _Settings(path), None
    if (path / "tokenizer.json").exists():
        origin = str(path / "tokenizer.json")
        plain = Tokenizer(read_json(path / "tokenizer.json", VOCABULARY_LIMIT, TokenizerError), origin)
        original = plain.to_json()
    else:
        origin = f"{path / 'vocab.json'} with merges.txt"
        original = {"normalizer": None, "post_processor": None, **_json_of_class(path, settings)}
    content, notes = _with_special_tokens(original, settings)
    # A tokenizer.json has a template for the start token; for the two files there is only this setting
    if plain is None and settings.adds_start and settings.start in tokenizer_json.special_tokens(content):
        content = tokenizer_json.with_start(content, settings.start)
    content, end_notes = _with_end_tokens(content, settings)
    tokenizer = plain if plain is not None and content == original else Tokenizer(content, origin)
    disagreements = [] if plain is None else _disagreements(content, settings)
    chat_template, template_notes = _read_template(path, settings.tokenizer)
    return tokenizer.with_chat_template(chat_template, [*notes, *end_notes, *disagreements, *template_notes])


# The class by the model_type in config.json, for a directory whose settings name no class
CLASS_OF_MODEL = {
    "gpt2": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen3Tokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
}


def _json_of_class(directory: Path, settings: _Settings) -> TokenizerJson:
    """The tokenizer of vocab.json and merges.txt; only the name of the class determines how text is split."""
    name = settings.tokenizer_class or CLASS_OF_MODEL.get(settings.model_type or "", "GPT2Tokenizer")
    vocabulary, merges = _read_vocabulary(directory / "vocab.json"), _read_merges(directory / "merges.txt")
    match name.removesuffix("Fast"):
        case "GPT2Tokenizer":
            split = tokenizer_json.byte_level_split(use_regex=True, prefix_space=settings.prefix_space)
            return tokenizer_json.byte_level_json(vocabulary, merges, split)
        case "Qwen2Tokenizer" | "Qwen3Tokenizer":
            split = tokenizer_json.pattern_split(tokenizer_json.QWEN2_PATTERN, prefix_space=settings.prefix_space)
            return {**tokenizer_json.byte_level_json(vocabulary, merges, split), "normalizer": {"type": "NFC"}}
        case "OpenAIGPTTokenizer":
            return tokenizer_json.openai_gpt_json(vocabulary, merges)
    # RoBERTa and others have files of these names too, but split text differently
    known = ", ".join(CLASS_OF_MODEL.values())
    raise TokenizerError(
        f"{directory} has vocab.json and merges.txt of a {name}, not of one of {known}; it needs tokenizer.json"
    )


def _with_special_tokens(content: TokenizerJson, settings: _Settings) -> tuple[TokenizerJson, list[str]]:
    """The tokenizer with the added tokens and special tokens of the settings, and notes on missing ones.

    A token is special if any file declares it special.
    """
    entries = {entry["content"]: entry for entry in content["added_tokens"]}
    for entry in settings.added:
        known = entries.get(entry["content"], entry)
        entries[entry["content"]] = {**known, "special": known["special"] or entry["special"]}
    content, notes = {**content, "added_tokens": _sorted(entries)}, []
    if settings.end is not None and tokenizer_json.token_id(content, settings.end) is None:
        raise TokenizerError(
            f"{settings.directory}: its end token {settings.end!r} is not in tokenizer.json; one of the files is wrong"
        )
    named = [name for name in (settings.start, settings.end) if name is not None]
    for name in dict.fromkeys([*named, *settings.specials]):
        token_id = tokenizer_json.token_id(content, name)
        if token_id is None:
            notes.append(f"the special token {name!r} is declared but not in the vocabulary: ignored")
        elif name not in tokenizer_json.special_tokens(content):
            entries[name] = tokenizer_json.special_token(name, token_id)
    return {**content, "added_tokens": _sorted(entries)}, notes


def _sorted(entries: dict[str, TokenizerJson]) -> list[TokenizerJson]:
    return sorted(entries.values(), key=lambda entry: entry["id"])


def _with_end_tokens(content: TokenizerJson, settings: _Settings) -> tuple[TokenizerJson, list[str]]:
    """The tokenizer with its end tokens, and notes on ids that cannot be end tokens."""
    special = tokenizer_json.special_tokens(content)
    name_of = {token_id: name for name, token_id in special.items()}
    current = tokenizer_json.end_ids(content)
    first = settings.end or next((name_of[token_id] for token_id in current), None)
    names, notes = [] if first is None else [first], []
    for file, token_id in settings.ends:
        if token_id in name_of:
            names.append(name_of[token_id])
        else:
            # LlamaConfig's default is 2, which is an ordinary token in other vocabularies
            notes.append(f"{file} names {token_id} as an end token, which is not a special token here: ignored")
    ends = list(dict.fromkeys(names))
    if ends and tuple(special[name] for name in ends) != current:
        content = tokenizer_json.with_ends(content, ends)
    return content, notes


def _disagreements(content: TokenizerJson, settings: _Settings) -> list[str]:
    notes = []
    starts, closing = tokenizer_json.template_ids(content)
    if settings.adds_start is not None and settings.adds_start != bool(starts):
        actual = "adds no start token" if settings.adds_start else "adds a start token"
        notes.append(
            f"tokenizer_config.json has add_bos_token {str(settings.adds_start).lower()}, but tokenizer.json "
            f"{actual}: tokenizer.json is used, as in transformers"
        )
    if closing:
        notes.append(
            "tokenizer.json puts a token after every text; it is left out here, because the text will be continued"
        )
    return notes


class _Settings:
    """The declarations of a directory's settings files.

    start, end: the names of the tokens, or None. specials: names of further special tokens. added: entries of added
    tokens. ends: (file, id) of each token that ends a generation. adds_start: True if the start token goes before every
    text, None if no file declares this.
    """

    def __init__(self, directory: Path):
        self.directory, self.tokenizer = directory, _read_if_present(directory / "tokenizer_config.json")
        config, files = _read_if_present(directory / "config.json"), [self.tokenizer]
        files.append(_read_if_present(directory / "special_tokens_map.json"))
        self.tokenizer_class = _text(self.tokenizer.get("tokenizer_class")) or _text(config.get("tokenizer_class"))
        self.model_type = _text(config.get("model_type"))
        self.start, self.end = (_first_name(key, files) for key in ("bos_token", "eos_token"))
        self.specials = [name for file in files for key in SPECIALS for name in _names(file.get(key))]
        self.added = _read_added(directory, self.tokenizer)
        self.ends = _named_ends(directory, config)
        adds_start = self.tokenizer.get("add_bos_token")
        self.adds_start = adds_start if isinstance(adds_start, bool) else None
        self.prefix_space = self.tokenizer.get("add_prefix_space") is True


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _name(token: Any) -> str | None:
    """The text of a token, which may be a string or an object."""
    return _text(token.get("content")) if isinstance(token, dict) else _text(token)


def _names(tokens: Any) -> list[str]:
    values = tokens.values() if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else ()
    return [name for name in map(_name, values) if name is not None]


def _first_name(key: str, files: list[dict[str, Any]]) -> str | None:
    return next((name for file in files if (name := _name(file.get(key))) is not None), None)


def _read_added(directory: Path, settings: dict[str, Any]) -> tuple[TokenizerJson, ...]:
    """The entries of added_tokens_decoder, and further entries of added_tokens.json."""
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
        entries[name] = tokenizer_json.special_token(name, int(token_id)) | {"special": False} | flags
    for name, token_id in _read_if_present(directory / "added_tokens.json").items():
        if type(token_id) is not int:
            raise TokenizerError(f"{directory / 'added_tokens.json'}: the id of {name[:60]!r} is not a number")
        entries.setdefault(name, tokenizer_json.special_token(name, token_id) | {"special": False, "normalized": True})
    return tuple(entries.values())


def _named_ends(directory: Path, config: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    """The end ids of generation_config.json, which transformers uses for generation, or else of config.json."""
    generation = _read_if_present(directory / "generation_config.json")
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        value = content.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if ids:
            return tuple((name, token_id) for token_id in ids if type(token_id) is int)
    return ()


def read_end_ids(directory: Path) -> list[int]:
    """The ids that end a text, from a directory in Hugging Face's layout."""
    return [token_id for _, token_id in _named_ends(directory, _read_if_present(directory / "config.json"))]


def _read_template(directory: Path, settings: dict[str, Any]) -> tuple[str | None, list[str]]:
    """The chat template, from its file or tokenizer_config.json, and notes on templates that are ignored."""
    if (template := _read_template_file(directory)) is not None:
        return template, []
    content = settings.get("chat_template")
    if not isinstance(content, list):
        return _text(content), []
    entries = [entry for entry in content if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
    templates = {entry["name"]: _text(entry.get("template")) for entry in entries}
    others = [name for name in templates if name != "default"]
    notes = [f"only the chat template 'default' is kept, not {', '.join(others)}"] if others else []
    return templates.get("default"), notes


def _read_template_file(directory: Path) -> str | None:
    path = directory / CHAT_TEMPLATE
    return read_text(path, TEMPLATE_LIMIT, TokenizerError) if os.path.lexists(path) else None


def _read_if_present(path: Path) -> dict[str, Any]:
    return read_json(path, error=TokenizerError) if os.path.lexists(path) else {}


def _read_vocabulary(path: Path) -> dict[str, int]:
    content = read_json(path, VOCABULARY_LIMIT, TokenizerError)
    if not content or any(type(token_id) is not int for token_id in content.values()):
        raise TokenizerError(f"{path} is not a vocabulary; it must be a JSON object of token to id")
    return content


def _read_merges(path: Path) -> list[list[str]]:
    merges = []
    for line_number, line in enumerate(read_text(path, VOCABULARY_LIMIT, TokenizerError).split("\n"), start=1):
        if not line or (line_number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise TokenizerError(f"{path}, line {line_number}: a merge is two tokens with one space, not {line[:60]!r}")
        merges.append(pair)
    return merges

"""Read a tokenizer from disk: a tokenizer.json, a directory as transformers writes it, or vocab.json and merges.txt.

`tokenizer_files` parses each file; here they become one Tokenizer, with notes where they contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretell.errors import TokenizerError
from foretell.files import VOCABULARY_LIMIT
from foretell.text import tokenizer_json
from foretell.text.tokenizer import Tokenizer
from foretell.text.tokenizer_files import (
    CHAT_TEMPLATE,
    DeclaredTokens,
    read_chat_template,
    read_chat_template_file,
    read_declared_tokens,
    read_merges,
    read_object,
    read_vocabulary,
)
from foretell.text.tokenizer_json import (
    QWEN2_PATTERN,
    TokenizerJson,
    byte_level_json,
    byte_level_split,
    openai_gpt_json,
    pattern_split,
    special_token,
)

UNREADABLE = ("tokenizer.model", "tekken.json", "tiktoken.model")  # SentencePiece's and others' own formats


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, or in a directory as transformers writes it.

    A directory holds tokenizer.json, or vocab.json and merges.txt (GPT-2, Qwen2, Qwen3, OpenAI GPT). The files
    tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json and config.json next to
    them may name added tokens and the tokens that end a text. Where they disagree tokenizer.json is used, and the
    tokenizer's `notes` say so. Raises TokenizerError for files that are missing, unreadable or inconsistent.
    """
    path = Path(path)
    if path.is_file() and path.suffix != ".json":
        raise TokenizerError(f"{path} is not a tokenizer; name a model, or a tokenizer.json")
    if not path.is_dir():
        tokenizer = Tokenizer(read_object(path, VOCABULARY_LIMIT), origin=str(path))
        return tokenizer.with_chat_template(read_chat_template_file(path.with_name(CHAT_TEMPLATE)))
    if (path / "tokenizer.json").exists():
        return _load_tokenizer_json(path)
    if (path / "vocab.json").exists() and (path / "merges.txt").exists():
        return _load_vocabulary_and_merges(path)
    unreadable = next((name for name in UNREADABLE if (path / name).exists()), None)
    advice = f"; {unreadable} is not read: have transformers save the tokenizer, which writes tokenizer.json"
    needed = "it needs tokenizer.json, or vocab.json and merges.txt"
    raise TokenizerError(f"{path} holds no tokenizer; {needed}{advice if unreadable else ''}")


def has_tokenizer(directory: Path) -> bool:
    """True where a directory has a file of a tokenizer, readable or not."""
    names = ("tokenizer.json", "vocab.json", "merges.txt", *UNREADABLE)
    return any((directory / name).exists() for name in names)


def gpt2_tokenizer(vocab_file: str | Path, merges_file: str | Path) -> Tokenizer:
    """GPT-2's tokenizer from its two files (vocab.json and merges.txt; OpenAI calls them encoder.json and vocab.bpe).

    Raises TokenizerError if one is missing, cannot be read, or does not fit the other.
    """
    vocabulary, merges = read_vocabulary(Path(vocab_file)), read_merges(Path(merges_file))
    content = byte_level_json(vocabulary, merges, byte_level_split(use_regex=True))
    return Tokenizer(content, origin=f"{vocab_file} with {Path(merges_file).name}")


def _load_tokenizer_json(path: Path) -> Tokenizer:
    origin = str(path / "tokenizer.json")
    plain = Tokenizer(read_object(path / "tokenizer.json", VOCABULARY_LIMIT), origin)
    original, declared = plain.to_json(), read_declared_tokens(path)
    content, notes = _with_special_tokens(original, declared, path)
    content, end_notes = _with_end_tokens(content, declared)
    tokenizer = plain if content == original else Tokenizer(content, origin)
    return _with_chat_template(tokenizer, path, [*notes, *end_notes, *_disagreements(content, declared)])


def _load_vocabulary_and_merges(path: Path) -> Tokenizer:
    declared = read_declared_tokens(path)
    name = declared.tokenizer_class or CLASS_OF_MODEL.get(declared.model_type or "", "GPT2Tokenizer")
    vocabulary, merges = read_vocabulary(path / "vocab.json"), read_merges(path / "merges.txt")
    plain = {"normalizer": None, "post_processor": None}
    plain |= _class_json(name, vocabulary, merges, path, prefix_space=declared.prefix_space)
    content, notes = _with_special_tokens(plain, declared, path)
    # A tokenizer.json has its own template for the start token; these two files have only this setting
    if declared.adds_start and declared.start in tokenizer_json.special_tokens(content):
        content = tokenizer_json.with_start(content, declared.start)
    content, end_notes = _with_end_tokens(content, declared)
    origin = f"{path / 'vocab.json'} with merges.txt"
    return _with_chat_template(Tokenizer(content, origin), path, [*notes, *end_notes])


def _with_chat_template(tokenizer: Tokenizer, path: Path, notes: list[str]) -> Tokenizer:
    template, template_notes = read_chat_template(path)
    return tokenizer.with_chat_template(template, [*notes, *template_notes])


# --- vocab.json and merges.txt: only the name of the class tells how text is split ------------------------------------


def _gpt2(vocabulary: dict[str, int], merges: list[Any], prefix_space: bool) -> TokenizerJson:
    return byte_level_json(vocabulary, merges, byte_level_split(use_regex=True, prefix_space=prefix_space))


def _qwen2(vocabulary: dict[str, int], merges: list[Any], prefix_space: bool) -> TokenizerJson:
    split = pattern_split(QWEN2_PATTERN, prefix_space=prefix_space)
    return {**byte_level_json(vocabulary, merges, split), "normalizer": {"type": "NFC"}}


def _openai_gpt(vocabulary: dict[str, int], merges: list[Any], prefix_space: bool) -> TokenizerJson:
    return openai_gpt_json(vocabulary, merges)


_CLASSES: dict[str, Callable[[dict[str, int], list[Any], bool], TokenizerJson]] = {
    "GPT2Tokenizer": _gpt2,
    "Qwen2Tokenizer": _qwen2,
    "Qwen3Tokenizer": _qwen2,
    "OpenAIGPTTokenizer": _openai_gpt,
}

# The class for a directory whose settings name none, by the model_type of its config.json
CLASS_OF_MODEL = {
    "gpt2": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
}


def _class_json(
    name: str, vocabulary: dict[str, int], merges: list[Any], directory: Path, *, prefix_space: bool
) -> TokenizerJson:
    make = _CLASSES.get(name.removesuffix("Fast"))
    if make is None:
        # The files of RoBERTa and others have these names too, but their text is split differently
        known = ", ".join(_CLASSES)
        raise TokenizerError(
            f"{directory} has vocab.json and merges.txt of a {name}, not of one of {known}; it needs tokenizer.json"
        )
    return make(vocabulary, merges, prefix_space)


# --- what the settings files declare ---------------------------------------------------------------------------------


def _disagreements(content: TokenizerJson, declared: DeclaredTokens) -> list[str]:
    """Notes on what tokenizer.json does differently from its settings files; as in transformers, it is used."""
    notes = []
    starts = tokenizer_json.start_ids(content)
    if declared.adds_start is not None and declared.adds_start != bool(starts):
        says = "adds no start token" if declared.adds_start else "adds a start token"
        notes.append(
            f"tokenizer_config.json says add_bos_token {str(declared.adds_start).lower()}, but tokenizer.json {says}: "
            "tokenizer.json is used, as in transformers"
        )
    if tokenizer_json.closing_ids(content):
        notes.append(
            "tokenizer.json puts a token after every text; it is left out here, since a text to be continued "
            "has not ended"
        )
    return notes


def _with_added(content: TokenizerJson, declared: DeclaredTokens) -> TokenizerJson:
    """Add the tokens that only the settings files list; a token is special if any file calls it so."""
    entries = {entry["content"]: entry for entry in content["added_tokens"]}
    for entry in declared.added:
        existing = entries.get(entry["content"], entry)
        entries[entry["content"]] = {**existing, "special": existing["special"] or entry["special"]}
    return {**content, "added_tokens": sorted(entries.values(), key=lambda entry: entry["id"])}


def _with_special_tokens(
    content: TokenizerJson, declared: DeclaredTokens, directory: Path
) -> tuple[TokenizerJson, list[str]]:
    """The tokenizer with its added tokens, its declared tokens made special, and notes on those that it lacks."""
    content, notes = _with_added(content, declared), []
    if declared.end is not None and tokenizer_json.token_id(content, declared.end) is None:
        raise TokenizerError(
            f"{directory}: its end token {declared.end!r} is not in tokenizer.json; one of the files is wrong"
        )
    named = [name for name in (declared.start, declared.end) if name is not None]
    for name in dict.fromkeys([*named, *declared.specials]):
        token_id = tokenizer_json.token_id(content, name)
        if token_id is None:
            notes.append(f"the special token {name!r} is declared but not in the vocabulary: it is left out")
        elif name not in tokenizer_json.special_tokens(content):
            content = _with_special(content, name, token_id)
    return content, notes


def _with_special(content: TokenizerJson, name: str, token_id: int) -> TokenizerJson:
    others = [entry for entry in content["added_tokens"] if entry["content"] != name]
    entries = sorted([*others, special_token(name, token_id)], key=lambda entry: entry["id"])
    return {**content, "added_tokens": entries}


def _with_end_tokens(content: TokenizerJson, declared: DeclaredTokens) -> tuple[TokenizerJson, list[str]]:
    """The tokenizer with the tokens that end a text, and notes on ids that cannot be one."""
    special = tokenizer_json.special_tokens(content)
    ends, notes = _end_names(content, declared)
    if ends and tuple(special[name] for name in ends) != tokenizer_json.end_ids(content):
        content = tokenizer_json.with_ends(content, ends)
    return content, notes


def _end_names(content: TokenizerJson, declared: DeclaredTokens) -> tuple[list[str], list[str]]:
    """The tokens that end a text, the one that ends a document first, and notes on ids that cannot be one."""
    special = {token_id: name for name, token_id in tokenizer_json.special_tokens(content).items()}
    own = (special[token_id] for token_id in tokenizer_json.end_ids(content))
    first = declared.end or next(own, None)
    names, notes = [] if first is None else [first], []
    for file, token_id in declared.ends:
        if token_id in special:
            names.append(special[token_id])
        else:
            # LlamaConfig's default is 2, which is an ordinary token in other vocabularies
            notes.append(f"{file} names {token_id} as an end token, which is not a special token here: it is left out")
    return list(dict.fromkeys(names)), notes

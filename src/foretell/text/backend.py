"""The Hugging Face `tokenizers` object behind a Tokenizer, and what the library does not guard by itself.

A broken tokenizer.json is refused, every failure of the library becomes one TokenizerError of one line, settings that
would change a text are switched off, and text that the library would silently drop is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import tokenizers

from foretell.errors import ForetellError, TokenizerError, did_you_mean
from foretell.text.byte_level import CHARACTER_TO_BYTE, missing_bytes, piece_bytes
from foretell.text.tokenizer_bounds import refuse_costly
from foretell.text.tokenizer_json import TokenizerJson, spells_bytes, templates

_CHARACTERS_BEFORE = 20  # how much text before an unknown character its error shows


@contextmanager
def rust_failures(what: str) -> Generator[None]:
    """Raise every failure of `tokenizers` as a TokenizerError that begins with `what`."""
    try:
        yield
    except ForetellError:  # includes Interrupted, which a signal can raise anywhere
        raise
    except Exception as error:  # tokenizers raises bare Exception, so nothing narrower catches it
        raise TokenizerError(f"{what}: {_one_line(error)}") from error
    except BaseException as error:
        # A panic in Rust derives from BaseException and its type cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


# --- building the object ---------------------------------------------------------------------------------------------


def make_backend(content: TokenizerJson, origin: str) -> tokenizers.Tokenizer:
    """The `tokenizers` object of a tokenizer.json. TokenizerError: it is broken; the message begins with `origin`."""
    refuse_broken_shape(content, origin)
    refuse_costly(content, origin)
    with rust_failures(f"{origin} is not a tokenizer that can be read"):
        backend = tokenizers.Tokenizer.from_str(json.dumps(without_text_changes(content)))
    _refuse_shared_ids(backend.get_vocab(), origin)
    _refuse_renumbered(content, backend, origin)
    return backend


def without_text_changes(content: TokenizerJson) -> TokenizerJson:
    """The same tokenizer without the settings that would silently change a text.

    Published files carry truncation (one common GPT-2 file cuts every text at 50 tokens), padding and BPE dropout
    (random ids). Added tokens written <|like this|> are control tokens even if not flagged so: a user's text must not
    become one.
    """
    model = dict(content["model"])
    if "dropout" in model:
        model["dropout"] = None
    added = [{**token, "special": token.get("special") or _is_control(token)} for token in _added_tokens(content)]
    return {**content, "truncation": None, "padding": None, "added_tokens": added, "model": model}


def _added_tokens(content: TokenizerJson) -> list[dict[str, Any]]:
    return content.get("added_tokens") or []


def _is_control(token: dict[str, Any]) -> bool:
    name = str(token.get("content"))
    return name.startswith("<|") and name.endswith("|>")


def _refuse_shared_ids(vocabulary: dict[str, int], origin: str) -> None:
    if not vocabulary:
        raise TokenizerError(f"{origin} holds no tokens; a tokenizer needs at least one")
    tokens: dict[int, str] = {}
    for token, token_id in vocabulary.items():
        if tokens.setdefault(token_id, token) != token:
            raise TokenizerError(f"{origin}: the tokens {tokens[token_id]!r} and {token!r} share the id {token_id}")


def _refuse_renumbered(content: TokenizerJson, backend: tokenizers.Tokenizer, origin: str) -> None:
    """Refuse added tokens with a gap before their ids: the library would silently give them other ids."""
    for token in _added_tokens(content):
        token_id = backend.token_to_id(token["content"])
        if token_id != token["id"]:
            raise TokenizerError(
                f"{origin}: the token {token['content']!r} has id {token['id']}, but would be read as id {token_id}; "
                "the added tokens must continue the vocabulary without a gap"
            )


def refuse_broken_shape(content: TokenizerJson, origin: str) -> None:
    """Raise TokenizerError if the JSON is not a tokenizer, or if its merges would make Rust panic."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise TokenizerError(f"{origin} is not a tokenizer: it has no 'model' section; give a tokenizer.json")
    added = _added_tokens(content)
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise TokenizerError(f"{origin} is not a tokenizer: its 'added_tokens' is not a list of tokens")
    if isinstance(model.get("merges"), list) and isinstance(model.get("vocab"), dict):
        _refuse_broken_merges(model, origin)


def _refuse_broken_merges(model: dict[str, Any], origin: str) -> None:
    vocabulary = model["vocab"]
    prefix = model.get("continuing_subword_prefix") or ""
    if not isinstance(prefix, str):
        raise TokenizerError(f"{origin}: its continuing_subword_prefix is {str(prefix)[:60]}, not a text")
    for merge_number, merge in enumerate(model["merges"], start=1):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise TokenizerError(f"{origin}: merge {merge_number} is not a pair of tokens: {str(merge)[:60]!r}")
        for token in (*parts, parts[0] + parts[1][len(prefix) :]):
            if token not in vocabulary:
                raise TokenizerError(
                    f"{origin}: merge {merge_number} needs the token {token[:60]!r}, which the vocabulary lacks"
                )


def refuse_broken_templates(content: TokenizerJson, origin: str) -> None:
    """Raise TokenizerError for a template that uses a special token without an entry, which the library accepts."""
    for template in templates(content):
        for step in (*template["single"], *template["pair"]):
            name = step.get("SpecialToken", {}).get("id")
            if name is not None and name not in template["special_tokens"]:
                raise TokenizerError(f"{origin}: its template uses the token {name[:60]!r}, for which it has no entry")


# --- text that the vocabulary cannot write ---------------------------------------------------------------------------
#
# Two models need a check. WordLevel without an unknown token fails without naming the word. BPE without an unknown
# token, without byte fallback and without all 256 bytes silently drops the characters that it does not know.


def refuse_surrogates(text: str) -> None:
    """Raise TokenizerError for half of a UTF-16 surrogate pair, which UTF-8 cannot hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise TokenizerError(
            f"the text holds a lone surrogate (U+{code:04X}) at character {error.start}; it is not valid Unicode, "
            "read the source with the right encoding"
        ) from error


def writable_characters(content: TokenizerJson) -> frozenset[str] | None:
    """The characters that a BPE model can write, if it silently drops all others; None for every other model."""
    model = content["model"]
    if model["type"] != "BPE" or model["unk_token"] is not None or model["byte_fallback"]:
        return None
    missing = missing_bytes(model["vocab"]) if spells_bytes(content) else set(CHARACTER_TO_BYTE) - set(model["vocab"])
    if not missing:
        return None
    prefix, suffix = model["continuing_subword_prefix"] or "", model["end_of_word_suffix"] or ""
    bare = (token.removeprefix(prefix).removesuffix(suffix) for token in model["vocab"])
    return frozenset(token for token in bare if len(token) == 1)


def refuse_dropped_characters(
    backend: tokenizers.Tokenizer, writable: frozenset[str], text: str, *, byte_level: bool
) -> None:
    """Raise TokenizerError for the first character or byte, after normalization, that is not in `writable`."""
    describe = _unknown_byte if byte_level else _unknown_character
    for part in _without_added(backend, text):
        for word in _words(backend, part):
            for index, character in enumerate(word):
                if character not in writable:
                    raise TokenizerError(describe(word, index, backend.get_vocab_size()))


def refuse_unknown_characters(backend: tokenizers.Tokenizer, vocabulary: dict[str, int], text: str) -> None:
    """Raise TokenizerError for the first character of `text` that is not in the vocabulary."""
    for part in _without_added(backend, text):
        for index, character in enumerate(part):
            if character not in vocabulary:
                raise TokenizerError(_unknown_character(part, index, len(vocabulary)))


def refuse_unknown_words(backend: tokenizers.Tokenizer, vocabulary: dict[str, int], text: str) -> None:
    """Raise TokenizerError for the first word of `text` that is not in the vocabulary."""
    for part in _without_added(backend, text):
        for word in _words(backend, part):
            if word not in vocabulary:
                near = did_you_mean(word, vocabulary)
                raise TokenizerError(
                    f"the word {word[:60]!r} is not in the vocabulary of {len(vocabulary)} tokens{near}"
                )


def _unknown_character(text: str, index: int, size: int) -> str:
    """The message for the character `text[index]`."""
    character, context = text[index], text[: index + 1]
    return (
        f"the character {character!r} (U+{ord(character):04X}) in {context[-_CHARACTERS_BEFORE:]!r} is not in the "
        f"vocabulary of {size} tokens; leave it out, or train the tokenizer on text that has it"
    )


def _unknown_byte(word: str, index: int, size: int) -> str:
    """The message for a byte of a word that is spelled in GPT-2's table; it names the character that has the byte."""
    data = piece_bytes(word)
    ends = (end for end in range(index + 1, len(data) + 1) if end == len(data) or data[end] & 0xC0 != 0x80)
    context = data[: next(ends)].decode("utf-8", errors="replace")
    return (
        f"the character {context[-1]!r} (U+{ord(context[-1]):04X}) in {context[-_CHARACTERS_BEFORE:]!r} has the byte "
        f"0x{data[index]:02X}, which is not in the vocabulary of {size} tokens; leave it out, or train the tokenizer "
        "on text that has it"
    )


def _without_added(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """The text between the added tokens that the backend would recognise in it."""
    added = backend.get_added_tokens_decoder().values()
    names = [token.content for token in added if not (token.special and backend.encode_special_tokens)]
    return re.split("|".join(map(re.escape, names)), text) if names else [text]


def _words(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    normalized = backend.normalizer.normalize_str(text) if backend.normalizer else text
    if backend.pre_tokenizer is None:
        return [normalized]
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized)]

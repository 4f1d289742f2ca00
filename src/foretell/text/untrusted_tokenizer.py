"""Checks of untrusted input for the `tokenizers` library: a tokenizer.json, and texts to encode.

The library panics on some broken files, uses 8 GB for a file of 61 bytes that contains the id 2^31-1, can expand one
character to 10 billion, applies the truncation that a file asks for, and silently drops characters outside the
vocabulary. Here each of these is refused with a TokenizerError of one line, or switched off. No published tokenizer
comes near the limits.
"""

from __future__ import annotations

import base64
import json
import math
import re
import unicodedata
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import tokenizers
from tokenizers import models

from foretell.errors import ForetellError, TokenizerError, did_you_mean
from foretell.text.tokenizer_json import (
    CHARACTER_TO_BYTE,
    TokenizerJson,
    missing_bytes,
    piece_bytes,
    spells_bytes,
    split_steps,
    templates,
)

MOST_UNUSED_IDS = 2**16  # unused ids below the largest one, in addition to one per token
MOST_EXPANSION = 64  # characters that the steps of a section can make from one; NFKC makes up to 18 in one step
MOST_PREPENDED = 1_000  # characters
MOST_STEPS = 200  # steps of a section, including nested ones
MOST_TEMPLATE_IDS = 1_000
SECTIONS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")
AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")
_CHARACTERS_BEFORE = 20  # characters before an unknown one that its error shows


@contextmanager
def rust_failures(what: str) -> Generator[None]:
    """Raise every failure of `tokenizers` as a TokenizerError that begins with `what`."""
    try:
        yield
    except ForetellError:  # including Interrupted, which a signal can raise anywhere
        raise
    except BaseException as error:
        # The library raises bare Exception. A panic in Rust derives from BaseException; its type cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what}: {' '.join(str(error).split())[:200]}") from error


def make_backend(content: TokenizerJson, origin: str) -> tokenizers.Tokenizer:
    """The `tokenizers` object of a tokenizer.json. The TokenizerError for a broken one begins with `origin`."""
    refuse_broken_shape(content, origin)
    refuse_costly(content, origin)
    with rust_failures(f"{origin} is not a tokenizer that can be read"):
        backend = tokenizers.Tokenizer.from_str(json.dumps(without_text_changes(content)))
    _refuse_shared_ids(backend.get_vocab(), origin)
    for token in content.get("added_tokens") or []:
        # If there is a gap before their ids, the library silently gives added tokens other ids
        token_id = backend.token_to_id(token["content"])
        if token_id != token["id"]:
            raise TokenizerError(
                f"{origin}: the token {token['content']!r} has id {token['id']}, but would be read as id {token_id}; "
                "the added tokens must continue the vocabulary without a gap"
            )
    if isinstance(backend.model, models.BPE | models.Unigram) and gets_whole_texts(content):
        backend.model._resize_cache(0)  # the cache would keep 10,000 whole texts of up to 256 bytes: 80 MB
    return backend


def gets_whole_texts(content: TokenizerJson) -> bool:
    """True if the model gets whole texts instead of words."""
    steps = split_steps(content.get("pre_tokenizer"))
    return all(step.get("use_regex", step.get("split")) is False for step in steps)


def without_text_changes(content: TokenizerJson) -> TokenizerJson:
    """The same tokenizer without settings that silently change a text.

    Published files can contain truncation (one common GPT-2 file cuts every text at 50 tokens), padding and BPE dropout
    (random ids). Added tokens of the form <|name|> are control tokens even if not marked as special: a user's text must
    not be encoded as one.
    """
    model = dict(content["model"])
    if "dropout" in model:
        model["dropout"] = None
    added = []
    for token in content.get("added_tokens") or []:
        name = str(token.get("content"))
        is_control = name.startswith("<|") and name.endswith("|>")
        added.append({**token, "special": token.get("special") or is_control})
    return {**content, "truncation": None, "padding": None, "added_tokens": added, "model": model}


# --- broken files ----------------------------------------------------------------------------------------------------


def refuse_broken_shape(content: TokenizerJson, origin: str) -> None:
    """Raise TokenizerError if the JSON is not a tokenizer, or if its merges would make Rust panic."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise TokenizerError(f"{origin} is not a tokenizer: it has no 'model' section; give a tokenizer.json")
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise TokenizerError(f"{origin} is not a tokenizer: its 'added_tokens' is not a list of tokens")
    if isinstance(model.get("merges"), list) and isinstance(model.get("vocab"), dict):
        _refuse_broken_merges(model, origin)


def _refuse_broken_merges(model: dict[str, Any], origin: str) -> None:
    prefix = model.get("continuing_subword_prefix") or ""
    if not isinstance(prefix, str):
        raise TokenizerError(f"{origin}: its continuing_subword_prefix is {str(prefix)[:60]}, not a text")
    for merge_number, merge in enumerate(model["merges"], start=1):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise TokenizerError(f"{origin}: merge {merge_number} is not a pair of tokens: {str(merge)[:60]!r}")
        if not parts[1].startswith(
            prefix
        ):  # the library cuts as many bytes off, perhaps within a character, and aborts
            raise TokenizerError(f"{origin}: the second token of merge {merge_number} lacks the prefix {prefix[:60]!r}")
        for token in (*parts, parts[0] + parts[1][len(prefix) :]):
            if token not in model["vocab"]:
                raise TokenizerError(
                    f"{origin}: merge {merge_number} needs the token {token[:60]!r}, which the vocabulary lacks"
                )


def _refuse_shared_ids(vocabulary: dict[str, int], origin: str) -> None:
    if not vocabulary:
        raise TokenizerError(f"{origin} has no tokens; a tokenizer needs at least one")
    tokens: dict[int, str] = {}
    for token, token_id in vocabulary.items():
        if tokens.setdefault(token_id, token) != token:
            raise TokenizerError(f"{origin}: the tokens {tokens[token_id]!r} and {token!r} share the id {token_id}")


def refuse_broken_templates(content: TokenizerJson, origin: str) -> None:
    """Raise TokenizerError for a template that uses a special token without an entry, which the library accepts."""
    for template in templates(content):
        for step in (*template["single"], *template["pair"]):
            name = step.get("SpecialToken", {}).get("id")
            if name is not None and name not in template["special_tokens"]:
                raise TokenizerError(f"{origin}: its template uses the token {name[:60]!r}, for which it has no entry")


# --- files that need excessive memory or time ------------------------------------------------------------------------


def refuse_costly(content: TokenizerJson, origin: str) -> None:
    """Raise TokenizerError for content that would need memory or time out of proportion to its size."""
    _refuse_sparse_ids(content["model"].get("vocab"), origin)
    for affix in AFFIXES:
        _refuse_long(content["model"].get(affix), f"its {affix}", origin)
    for section in SECTIONS:
        steps = list(_steps(content.get(section), section, origin))
        expansion = math.prod(max(1, _expansion(step, origin)) for step in steps)
        if expansion > MOST_EXPANSION:
            raise TokenizerError(
                f"{origin}: its {section} can make a text {expansion:,} times as long (at most {MOST_EXPANSION}); "
                "get the file from another source"
            )
        for step in steps:
            _refuse_long(step.get("prepend"), f"the text that its {section} puts before a text", origin)
            _refuse_long_template(step, origin)
            if step["type"] == "FixedLength" and step.get("length") == 0:
                raise TokenizerError(f"{origin}: its {section} makes words of 0 characters; the file is wrong")


def _refuse_sparse_ids(vocabulary: Any, origin: str) -> None:
    """Refuse ids far above the number of tokens, because the library's tables have an entry for each smaller id."""
    if not isinstance(vocabulary, dict):
        return
    most = 2 * len(vocabulary) + MOST_UNUSED_IDS
    for token, token_id in vocabulary.items():
        if isinstance(token_id, int) and token_id > most:
            raise TokenizerError(
                f"{origin}: the token {token[:60]!r} has the id {token_id}, but the vocabulary has only "
                f"{len(vocabulary)} tokens; the file is wrong"
            )


def _steps(part: Any, section: str, origin: str) -> Iterator[dict[str, Any]]:
    """Every object in a section. Not recursive, because objects can be nested deeply."""
    pending, count = [part], 0
    while pending:
        value = pending.pop()
        if isinstance(value, dict) and "type" in value:
            count += 1
            if count > MOST_STEPS:
                raise TokenizerError(f"{origin}: its {section} has more than {MOST_STEPS} steps; the file is wrong")
            yield value
            value = list(value.values())
        if isinstance(value, list):
            pending += [inner for inner in value if isinstance(inner, list | dict)]


def _expansion(step: dict[str, Any], origin: str) -> int:
    """The largest number of characters that a step makes from one."""
    kind, pattern = step.get("type"), step.get("pattern")
    if kind == "Replace":
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        replacement = len(str(step.get("content")))
        # A regular expression and an empty text can also match between characters
        return math.ceil(replacement / len(literal)) if literal and isinstance(literal, str) else replacement + 1
    if kind == "Precompiled":
        return _longest_precompiled(step.get("precompiled_charsmap"), origin)
    return 2 if kind == "ByteLevel" or (kind == "BPEDecoder" and not step.get("suffix")) else 1


def _longest_precompiled(encoded: Any, origin: str) -> int:
    """The length of the longest text in SentencePiece's table (format: size of an index, index, NUL-terminated texts).

    Raises TokenizerError for a damaged table, on which the library would panic and print to stderr.
    """
    try:
        table = base64.b64decode(encoded, validate=True)
        size = int.from_bytes(table[:4], "little")
        if not 4 <= size <= len(table) - 4:
            raise ValueError
        return max(map(len, table[4 + size :].decode("utf-8").split("\0")))
    except (TypeError, ValueError):
        raise TokenizerError(f"{origin}: its precompiled_charsmap is damaged; get the file again") from None


def _refuse_long(text: Any, what: str, origin: str) -> None:
    if isinstance(text, str) and len(text) > MOST_PREPENDED:
        raise TokenizerError(f"{origin}: {what} has {len(text):,} characters (at most {MOST_PREPENDED:,})")


def _refuse_long_template(step: dict[str, Any], origin: str) -> None:
    tokens = step.get("special_tokens")
    entries = tokens.values() if isinstance(tokens, dict) else ()
    parts = [step.get("single"), *(entry.get("ids") for entry in entries if isinstance(entry, dict))]
    longest = max((len(part) for part in parts if isinstance(part, list)), default=0)
    if longest > MOST_TEMPLATE_IDS:
        raise TokenizerError(
            f"{origin}: its template puts {longest:,} tokens around a text (at most {MOST_TEMPLATE_IDS:,})"
        )


# --- texts that the vocabulary cannot encode -------------------------------------------------------------------------
#
# Two models need a check. WordLevel without an unknown token fails without naming the word. BPE without an unknown
# token, without byte fallback and without all 256 bytes silently drops unknown characters.


def refuse_surrogates(text: str, what: str = "the text") -> None:
    """Raise TokenizerError for half of a UTF-16 surrogate pair, which UTF-8 cannot represent."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        advice = "it is not valid Unicode, read the source with the right encoding"
        if 0xDC80 <= code <= 0xDCFF:  # Python's form of a byte in an argument
            advice = "it is a byte that the locale's encoding does not have: export LC_ALL=C.UTF-8 PYTHONUTF8=1"
        where = f"at character {error.start}"
        raise TokenizerError(f"{what} holds a lone surrogate (U+{code:04X}) {where}; {advice}") from error


def writable_characters(content: TokenizerJson) -> frozenset[str] | None:
    """The characters that a BPE model can encode, if it silently drops all others; None for any other model."""
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


def refuse_unknown_characters(backend: tokenizers.Tokenizer, text: str) -> None:
    """Raise TokenizerError for the first character of `text` that is not in the vocabulary."""
    vocabulary = backend.get_vocab()
    for part in _without_added(backend, text):
        for index, character in enumerate(part):
            if character not in vocabulary:
                form = _known_form(vocabulary, text, lambda other: chain(*_without_added(backend, other)))
                raise TokenizerError(_unknown_character(part, index, len(vocabulary)) + form)


def refuse_unknown_words(backend: tokenizers.Tokenizer, text: str) -> None:
    """Raise TokenizerError for the first word of `text` that is not in the vocabulary."""
    vocabulary, size = backend.get_vocab(), backend.get_vocab_size()
    for part in _without_added(backend, text):
        for word in _words(backend, part):
            if word not in vocabulary:
                if all(vocabulary.get(str(token_id)) == token_id for token_id in range(size)):
                    raise TokenizerError(f"{word[:60]!r} is not a token id; the ids are 0 to {size - 1}")
                form = _known_form(vocabulary, word, lambda other: _words(backend, other))
                near = form or did_you_mean(word, vocabulary)
                raise TokenizerError(f"the word {word[:60]!r} is not in the vocabulary of {size} tokens{near}")


def _known_form(vocabulary: Container[str], text: str, pieces: Callable[[str], Iterable[str]]) -> str:
    """The end of a message: the Unicode form of the text that the vocabulary has; empty if there is none."""
    for form in ("NFC", "NFD"):
        if all(piece in vocabulary for piece in pieces(unicodedata.normalize(form, text))):
            return f"; it has this text in the Unicode form {form}: unicodedata.normalize('{form}', text)"
    return ""


def _unknown_character(text: str, index: int, size: int) -> str:
    character, context = text[index], text[: index + 1]
    return (
        f"the character {character!r} (U+{ord(character):04X}) in {context[-_CHARACTERS_BEFORE:]!r} is not in the "
        f"vocabulary of {size} tokens; leave it out, or train the tokenizer on text that has it"
    )


def _unknown_byte(word: str, index: int, size: int) -> str:
    """The message for an unknown byte in a word of GPT-2's byte characters; it names the character with the byte."""
    data = piece_bytes(word)
    ends = (end for end in range(index + 1, len(data) + 1) if end == len(data) or data[end] & 0xC0 != 0x80)
    context = data[: next(ends)].decode("utf-8", errors="replace")
    return (
        f"the character {context[-1]!r} (U+{ord(context[-1]):04X}) in {context[-_CHARACTERS_BEFORE:]!r} has the byte "
        f"0x{data[index]:02X}, which is not in the vocabulary of {size} tokens; leave it out, or train the tokenizer "
        "on text that has it"
    )


def _without_added(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """The text between the added tokens that the backend recognises."""
    added = backend.get_added_tokens_decoder().values()
    names = [token.content for token in added if not (token.special and backend.encode_special_tokens)]
    return re.split("|".join(map(re.escape, names)), text) if names else [text]


def _words(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    with rust_failures("the text cannot be encoded"):
        normalized = backend.normalizer.normalize_str(text) if backend.normalizer else text
        parts = backend.pre_tokenizer.pre_tokenize_str(normalized) if backend.pre_tokenizer else [(normalized, None)]
    return [word for word, _ in parts]

"""Checks of untrusted input for the `tokenizers` library: a tokenizer.json, and texts to encode.

The library panics on some broken files, uses 8 GB for a file of 61 bytes that contains the id 2^31-1, can expand one
character to 10 billion, applies the truncation that a file asks for, and silently drops characters outside the
vocabulary. Each of these is refused before the library reads the file, or switched off; every other fault is the
library's own error in one line. No published tokenizer comes near the limits.
"""

from __future__ import annotations

import base64
import json
import math
import re
import unicodedata
from collections.abc import Container, Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from typing import Any

import tokenizers
from tokenizers import models

from foretell.errors import ForetellError, TokenizerError, did_you_mean
from foretell.text.tokenizer_json import (
    CHARACTER_TO_BYTE,
    TokenizerJson,
    missing_bytes,
    names_in_template,
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
    with rust_failures(f"{origin} is not a tokenizer that can be read"):  # also where a check meets another type
        if not isinstance(content.get("model"), dict):
            raise TokenizerError(f"{origin} is not a tokenizer: it has no 'model' section; give a tokenizer.json")
        refuse_costly(content, origin)
        _refuse_panics(content["model"], origin)
        backend = tokenizers.Tokenizer.from_str(json.dumps(without_text_changes(content)))
    _refuse_other_ids(backend, content, origin)
    if isinstance(backend.model, models.BPE | models.Unigram) and gets_whole_texts(content):
        backend.model._resize_cache(0)  # the cache would keep 10,000 whole texts of up to 256 bytes: 80 MB
    return backend


def with_defaults(content: TokenizerJson, backend: tokenizers.Tokenizer) -> TokenizerJson:
    """The content as the library writes it, with all defaults.

    A BPE model's vocabulary and merges are as given: to write and parse Gemma's takes a second.
    """
    model = backend.model
    if not isinstance(model, models.BPE):
        return json.loads(backend.to_str())
    backend.model = models.BPE()
    written = json.loads(backend.to_str())
    backend.model = model
    return {**written, "model": {**written["model"], **content["model"]}}


def gets_whole_texts(content: TokenizerJson) -> bool:
    """True if the model gets whole texts instead of words."""
    steps = split_steps(content.get("pre_tokenizer"))
    return all(step.get("use_regex", step.get("split")) is False for step in steps)


def without_text_changes(content: TokenizerJson) -> TokenizerJson:
    """Remove settings of a tokenizer that silently change a text.

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


# --- files that the library would accept or panic on -----------------------------------------------------------------


def _refuse_panics(model: dict[str, Any], origin: str) -> None:
    """Refuse merges whose result is not a token, on which the library panics.

    It cuts len(prefix) bytes off the second token, and ends the program if that is within a character.
    """
    prefix, vocabulary = model.get("continuing_subword_prefix") or "", model.get("vocab", {})
    for merge_number, merge in enumerate(model.get("merges") or (), start=1):
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        if not prefix and first in vocabulary and second in vocabulary and first + second in vocabulary:
            continue  # Gemma has 514,847 merges
        if not second.startswith(prefix):
            raise TokenizerError(f"{origin}: the second token of merge {merge_number} lacks the prefix {prefix[:60]!r}")
        for token in (first, second, first + second.removeprefix(prefix)):
            if token not in vocabulary:
                raise TokenizerError(
                    f"{origin}: merge {merge_number} needs the token {token[:60]!r}, which the vocabulary lacks"
                )


def _refuse_other_ids(backend: tokenizers.Tokenizer, content: TokenizerJson, origin: str) -> None:
    """Refuse an empty vocabulary, tokens that share an id, and added tokens that the library gives other ids."""
    vocabulary = backend.get_vocab()
    if not vocabulary:
        raise TokenizerError(f"{origin} has no tokens; a tokenizer needs at least one")
    if len(set(vocabulary.values())) < len(vocabulary):
        name_of = {token_id: token for token, token_id in vocabulary.items()}
        token = next(iter(vocabulary.keys() - name_of.values()))
        other = name_of[vocabulary[token]]
        raise TokenizerError(f"{origin}: the tokens {other!r} and {token!r} share the id {vocabulary[token]}")
    for added in content.get("added_tokens") or ():
        token_id = vocabulary.get(added["content"])
        if token_id != added["id"]:
            raise TokenizerError(
                f"{origin}: the token {added['content'][:60]!r} has id {added['id']}, but would be read as {token_id}; "
                "the added tokens must continue the vocabulary without a gap"
            )


def refuse_broken_templates(content: TokenizerJson, origin: str) -> None:
    """Raise TokenizerError for a template that uses a special token without an entry, which the library accepts."""
    for template in templates(content):
        for name in names_in_template(template) - template["special_tokens"].keys():
            raise TokenizerError(f"{origin}: its template uses the token {name[:60]!r}, for which it has no entry")


# --- files that need excessive memory or time ------------------------------------------------------------------------


def refuse_costly(content: TokenizerJson, origin: str) -> None:
    """Raise TokenizerError for content that would need memory or time out of proportion to its size."""
    for amount, most, description in _costs(content, origin):
        if amount > most:
            raise TokenizerError(f"{origin}: {description} (at most {most:,}); get the file from another source")


def _costs(content: TokenizerJson, origin: str) -> Iterator[tuple[int, int, str]]:
    """Each amount that takes memory or time, its limit, and a description; in an order that bounds the later ones."""
    model = content["model"]
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, dict):  # the library's tables have an entry for each smaller id
        token, token_id = max(vocabulary.items(), key=itemgetter(1), default=("", 0))
        yield token_id, 2 * len(vocabulary) + MOST_UNUSED_IDS, f"the token {token[:60]!r} has the id {token_id}"
    for affix in AFFIXES:
        length = len(model.get(affix) or "")
        yield length, MOST_PREPENDED, f"its {affix} has {length:,} characters"
    for section in SECTIONS:
        steps = list(_steps(content.get(section)))
        yield len(steps), MOST_STEPS, f"its {section} has {len(steps):,} steps"
        expansion = math.prod(max(1, _expansion(step, origin)) for step in steps)
        yield expansion, MOST_EXPANSION, f"its {section} can make a text {expansion:,} times as long"
        for step in steps:
            length = len(step.get("prepend") or "")
            yield length, MOST_PREPENDED, f"the text that its {section} puts before a text has {length:,} characters"
            entries = step.get("special_tokens") or {}
            parts = [step.get("single") or (), *(entry["ids"] for entry in entries.values())]
            longest = max(map(len, parts))
            yield longest, MOST_TEMPLATE_IDS, f"its template puts {longest:,} tokens around a text"
            if step["type"] == "FixedLength" and step.get("length") == 0:
                raise TokenizerError(f"{origin}: its {section} makes words of 0 characters; the file is wrong")


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """Every object in a section. Not recursive, because objects can be nested deeply."""
    pending = [part]
    while pending:
        value = pending.pop()
        if isinstance(value, dict) and "type" in value:
            yield value
            value = list(value.values())
        if isinstance(value, list):
            pending += [inner for inner in value if isinstance(inner, list | dict)]


def _expansion(step: dict[str, Any], origin: str) -> int:
    """The largest number of characters that a step makes from one."""
    kind = step["type"]
    if kind == "Replace":
        literal, replacement = step["pattern"].get("String"), len(step["content"])
        # A regular expression and an empty text can also match between characters
        return math.ceil(replacement / len(literal)) if literal else replacement + 1
    if kind == "Precompiled":
        return _longest_precompiled(step["precompiled_charsmap"], origin)
    return 2 if kind == "ByteLevel" or (kind == "BPEDecoder" and not step.get("suffix")) else 1


def _longest_precompiled(encoded: str, origin: str) -> int:
    """The length of the longest text in SentencePiece's table (format: size of an index, index, NUL-terminated texts).

    Raises TokenizerError for a damaged table, on which the library would panic and print to stderr.
    """
    table = base64.b64decode(encoded, validate=True)
    size = int.from_bytes(table[:4], "little")
    if not 4 <= size <= len(table) - 4:
        raise TokenizerError(f"{origin}: its precompiled_charsmap is damaged; get the file again")
    return max(map(len, table[4 + size :].decode("utf-8").split("\0")))


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
    for word in chain.from_iterable(_words(backend, text)):
        for index, character in enumerate(word):
            if character not in writable:
                raise TokenizerError(describe(word, index, backend.get_vocab_size()))


def refuse_unknown(backend: tokenizers.Tokenizer, text: str, *, characters: bool) -> None:
    """Raise TokenizerError for the first word, or character, that is not in a word-level vocabulary."""
    vocabulary, size = backend.get_vocab(), backend.get_vocab_size()
    for words in _words(backend, text):
        for index, word in enumerate(words):
            if word not in vocabulary:
                form = _known_form(backend, vocabulary, text if characters else word)
                if characters:
                    raise TokenizerError(_unknown_character("".join(words), index, size) + form)
                if all(vocabulary.get(str(token_id)) == token_id for token_id in range(size)):
                    raise TokenizerError(f"{word[:60]!r} is not a token id; the ids are 0 to {size - 1}")
                near = form or did_you_mean(word, vocabulary)
                raise TokenizerError(f"the word {word[:60]!r} is not in the vocabulary of {size} tokens{near}")


def _known_form(backend: tokenizers.Tokenizer, vocabulary: Container[str], text: str) -> str:
    """The end of a message: the Unicode form of the text that the vocabulary has; empty if there is none."""
    for form in ("NFC", "NFD"):
        words = chain.from_iterable(_words(backend, unicodedata.normalize(form, text)))
        if all(word in vocabulary for word in words):
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


def _words(backend: tokenizers.Tokenizer, text: str) -> Iterator[list[str]]:
    """The words as the model gets them, for each part of the text between added tokens that the backend recognises."""
    added = backend.get_added_tokens_decoder().values()
    names = [token.content for token in added if not (token.special and backend.encode_special_tokens)]
    for part in re.split("|".join(map(re.escape, names)), text) if names else [text]:
        with rust_failures("the text cannot be encoded"):
            normalized = backend.normalizer.normalize_str(part) if backend.normalizer else part
            split = backend.pre_tokenizer
            words = [word for word, _ in split.pre_tokenize_str(normalized)] if split else [normalized]
        yield words

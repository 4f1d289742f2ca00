"""Name what a text contains that a vocabulary cannot write, so that nothing is dropped in silence.

Two models need it. WordLevel without an unknown token refuses, but does not say what. BPE without an unknown token,
without byte fallback and without all 256 bytes drops what it does not know and says nothing.
"""

from __future__ import annotations

import re

import tokenizers

from foretell.errors import TokenizerError, did_you_mean
from foretell.text.backend import Document
from foretell.text.byte_level import CHARACTER_TO_BYTE

_BEFORE = 20  # characters of context shown before the one that is not known


def refuse_surrogates(text: str) -> None:
    """Raise TokenizerError for half of a UTF-16 pair, which no UTF-8 text can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise TokenizerError(
            f"the text holds a lone surrogate (U+{code:04X}) at character {error.start}; it is not valid Unicode, "
            "read the source with the right encoding"
        ) from error


def symbols_of(document: Document) -> frozenset[str] | None:
    """The characters that a BPE model can write where it leaves out all others without a word; None for the rest."""
    model = document["model"]
    if model["type"] != "BPE" or model["unk_token"] is not None or model["byte_fallback"]:
        return None
    if all(character in model["vocab"] for character in CHARACTER_TO_BYTE):
        return None
    prefix, suffix = model["continuing_subword_prefix"] or "", model["end_of_word_suffix"] or ""
    bare = (token.removeprefix(prefix).removesuffix(suffix) for token in model["vocab"])
    return frozenset(token for token in bare if len(token) == 1)


def refuse_unknown_symbols(backend: tokenizers.Tokenizer, symbols: frozenset[str], text: str) -> None:
    """Raise TokenizerError for the first character, after normalization, that is not among the symbols."""
    for part in _without_added(backend, text):
        for word in _words(backend, part):
            for place, character in enumerate(word):
                if character not in symbols:
                    raise TokenizerError(_unknown_character(character, word[: place + 1], len(symbols)))


def refuse_unknown_characters(backend: tokenizers.Tokenizer, vocabulary: dict[str, int], text: str) -> None:
    """Raise TokenizerError for the first character of `text` that is not in the vocabulary."""
    for part in _without_added(backend, text):
        for place, character in enumerate(part):
            if character not in vocabulary:
                raise TokenizerError(_unknown_character(character, part[: place + 1], len(vocabulary)))


def refuse_unknown_words(backend: tokenizers.Tokenizer, vocabulary: dict[str, int], text: str) -> None:
    """Raise TokenizerError for the first word of `text` that is not in the vocabulary."""
    for part in _without_added(backend, text):
        for word in _words(backend, part):
            if word not in vocabulary:
                near = did_you_mean(word, vocabulary)
                raise TokenizerError(
                    f"the word {word[:60]!r} is not in the vocabulary of {len(vocabulary)} tokens{near}"
                )


def _unknown_character(character: str, context: str, size: int) -> str:
    return (
        f"the character {character!r} (U+{ord(character):04X}) in {context[-_BEFORE:]!r} is not in the vocabulary of "
        f"{size} tokens; leave it out, or train the tokenizer on text that has it"
    )


def _without_added(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """The text between the added tokens that the backend would find in it."""
    added = backend.get_added_tokens_decoder().values()
    found = [token.content for token in added if not (token.special and backend.encode_special_tokens)]
    return re.split("|".join(map(re.escape, found)), text) if found else [text]


def _words(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    normalized = backend.normalizer.normalize_str(text) if backend.normalizer else text
    if backend.pre_tokenizer is None:
        return [normalized]
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized)]

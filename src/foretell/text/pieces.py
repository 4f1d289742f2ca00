"""Where a long text can be cut so that its pieces, encoded apart, give the same ids as the whole.

A pre-tokenizer splits a text into words that the model encodes one by one, so a cut is safe where it surely splits.
GPT-2's, Qwen2's and Llama 3's patterns have no alternative in which a letter or digit is followed by a space, a newline
or one of the marks below, none looks behind, and their only look-ahead, `\\s+(?!\\S)`, is about white space, which
never ends a piece cut here; SmolLM's is GPT-2's between single digits. Words split there too. Bytes and characters can
be cut anywhere. For any other tokenizer nothing is known, and the text stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from foretell.text.backend import Document
from foretell.text.documents import (
    LLAMA3_PATTERN,
    QWEN2_PATTERN,
    WORD_SPLIT,
    byte_level_split,
    digit_split,
    pattern_split,
)
from foretell.text.structure import kind_of

PIECE_SIZE = 65_536  # characters; on two cores 4,096 to 262,144 encode equally fast, within 15 percent

ANYWHERE = re.compile("")
AFTER_WORD = re.compile(r"(?<=[^\W_])(?=[ \n.,。，、])")

# A tokenizer.json differs in `trim_offsets` from writer to writer; it moves no id.
_CUT_AFTER_WORD = (
    byte_level_split(use_regex=True),
    pattern_split(QWEN2_PATTERN),
    pattern_split(LLAMA3_PATTERN),
    digit_split(),
    WORD_SPLIT,
)


def safe_cut(document: Document) -> re.Pattern[str] | None:
    """The pattern that finds the places where a text can be cut, or None where it must stay whole."""
    cut = _cut_of_split(document)
    normalizer = document["normalizer"]
    # NFC never joins a letter to the space or mark after it; other normalizers are unknown.
    if cut is None or (normalizer is not None and (normalizer != {"type": "NFC"} or cut is ANYWHERE)):
        return None
    ordinary = [token for token in document["added_tokens"] if not token["special"]]
    return None if any(_crosses(token, cut) for token in ordinary) else cut


def _cut_of_split(document: Document) -> re.Pattern[str] | None:
    split = _without_offsets(document["pre_tokenizer"])
    kind = kind_of(document)
    if kind == "characters" or (kind == "bytes" and split == _without_offsets(byte_level_split(use_regex=False))):
        return ANYWHERE
    known = any(split == _without_offsets(candidate) for candidate in _CUT_AFTER_WORD)
    return AFTER_WORD if known else None


def _without_offsets(split: Any) -> Any:
    """A pre-tokenizer's description without `trim_offsets`, at any depth."""
    if isinstance(split, list):
        return [_without_offsets(part) for part in split]
    if isinstance(split, dict):
        return {key: _without_offsets(value) for key, value in split.items() if key != "trim_offsets"}
    return split


def _crosses(token: dict[str, Any], cut: re.Pattern[str]) -> bool:
    """Whether an added token could reach over a cut, or looks at what stands beside it."""
    beside = token["lstrip"] or token["rstrip"] or token["single_word"]
    inside = cut.search(token["content"], 1)
    return beside or (inside is not None and inside.start() < len(token["content"]))


def iter_stream_pieces(texts: Iterable[str], cut: re.Pattern[str] | None, size: int = PIECE_SIZE) -> Iterator[str]:
    """The same pieces as of the joined texts, or others that are as safe, while only a few are in memory."""
    rest = ""
    for text in texts:
        *pieces, rest = [*iter_pieces(rest + text, cut, size)] or [""]
        yield from pieces
    if rest:
        yield rest


def iter_pieces(text: str, cut: re.Pattern[str] | None, size: int = PIECE_SIZE) -> Iterator[str]:
    """The text in pieces of `size` characters or a little more, cut only where `cut` allows; whole where it is None."""
    start = 0
    while cut is not None and (place := cut.search(text, start + size)) is not None and place.start() < len(text):
        yield text[start : place.start()]
        start = place.start()
    if start < len(text):
        yield text[start:]

"""Cutting a long text into pieces that, encoded separately, give the same ids as the whole.

A pre-tokenizer splits a text into words that the model encodes one by one, so a cut is safe where it always splits.
GPT-2's, Qwen2's and Llama 3's patterns have no alternative in which a letter or digit is followed by a space, a newline
or one of the marks below. They have no look-behind, and their only look-ahead, `\\s+(?!\\S)`, concerns white space,
which never ends a piece cut here. SmolLM applies GPT-2's pattern between single digits. The split into words has this
property too. Bytes and characters can be cut anywhere. The texts of any other tokenizer are not cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from foretell.text.tokenizer_json import (
    LLAMA3_PATTERN,
    QWEN2_PATTERN,
    WORD_SPLIT,
    TokenizerJson,
    byte_level_split,
    digit_split,
    kind_of,
    pattern_split,
)

PIECE_SIZE = 65_536  # characters; on two cores 4,096 to 262,144 encode equally fast, within 15 percent

ANYWHERE = re.compile("")
AFTER_WORD = re.compile(r"(?<=[^\W_])(?=[ \n.,。，、])")

# A tokenizer.json differs in `trim_offsets` from writer to writer; it changes no id.
_CUT_AFTER_WORD = (
    byte_level_split(use_regex=True),
    pattern_split(QWEN2_PATTERN),
    pattern_split(LLAMA3_PATTERN),
    digit_split(),
    WORD_SPLIT,
)


def safe_cut(content: TokenizerJson) -> re.Pattern[str] | None:
    """A pattern that matches where a text can be cut; None if this tokenizer's texts must not be cut."""
    cut = _cut_of_split(content)
    normalizer = content["normalizer"]
    # NFC never joins a letter to the space or mark after it; other normalizers are unknown.
    if cut is None or (normalizer is not None and (normalizer != {"type": "NFC"} or cut is ANYWHERE)):
        return None
    ordinary = [token for token in content["added_tokens"] if not token["special"]]
    return None if any(_crosses(token, cut) for token in ordinary) else cut


def _cut_of_split(content: TokenizerJson) -> re.Pattern[str] | None:
    split = _without_offsets(content["pre_tokenizer"])
    kind = kind_of(content)
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
    """True if an added token could reach across a cut, or depends on the text around it."""
    depends_on_neighbours = token["lstrip"] or token["rstrip"] or token["single_word"]
    inside = cut.search(token["content"], 1)
    return depends_on_neighbours or (inside is not None and inside.start() < len(token["content"]))


def iter_stream_pieces(texts: Iterable[str], cut: re.Pattern[str] | None, size: int = PIECE_SIZE) -> Iterator[str]:
    """Safe pieces of a text that comes in parts; only a few pieces are in memory at a time."""
    rest = ""
    for text in texts:
        *pieces, rest = [*iter_pieces(rest + text, cut, size)] or [""]
        yield from pieces
    if rest:
        yield rest


def iter_pieces(text: str, cut: re.Pattern[str] | None, size: int = PIECE_SIZE) -> Iterator[str]:
    """Pieces of `size` characters or slightly more, cut only where `cut` matches; the whole text if it is None."""
    start = 0
    while cut is not None and (match := cut.search(text, start + size)) is not None and match.start() < len(text):
        yield text[start : match.start()]
        start = match.start()
    if start < len(text):
        yield text[start:]

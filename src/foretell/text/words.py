"""The words of a text as groups of tokens, for displays by word.

A word is a run of characters without white space, together with the white space before it, so punctuation belongs to
the word before it. In scripts without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan)
each letter begins a word, and so does a letter of another script after one. Words that share a token are one group. So
a text without spaces is divided into its tokens, but never inside a character.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from foretell.text.tokenizer import Tokenizer

GAP = re.compile(r"(?<=\S)\s+(?=\S)")
WITHOUT_SPACES = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3001-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff01-\uff0f\uff1a-\uff20\uff61-\uff9f\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Word:
    """A part of a text, and the indices of its tokens; the joined parts are the text."""

    text: str
    tokens: tuple[int, ...]


def words_of(tokenizer: Tokenizer, text: str) -> list[Word]:
    """The words of a text. Raises TokenizerError for a text that the tokenizer cannot encode."""
    offsets = tokenizer.offsets(text)
    divided = {at for start, end in offsets for at in range(start + 1, end)}
    starts = [at for at in word_starts(text) if at not in divided]
    groups: dict[int, list[int]] = {}
    for token, (start, _) in enumerate(offsets):
        groups.setdefault(bisect_right(starts, start) - 1, []).append(token)
    bounds = [0, *(starts[group] for group in sorted(groups)[1:]), len(text)]
    spans = pairwise(bounds)
    return [
        Word(text[start:end], tuple(groups[group])) for (start, end), group in zip(spans, sorted(groups), strict=True)
    ]


def pieces_of(tokenizer: Tokenizer, text: str) -> list[Word]:
    return [Word(tokenizer.text_of(token), (index,)) for index, token in enumerate(tokenizer.encode(text))]


def word_starts(text: str) -> list[int]:
    """The positions at which words begin, in ascending order; the first is 0."""
    starts = {0, *(gap.start() for gap in GAP.finditer(text))}
    for match in WITHOUT_SPACES.finditer(text):
        at = match.start()
        after_space = at > 0 and text[at - 1].isspace()
        starts |= {at} if is_letter(text[at]) and not after_space else set()
        starts |= {at + 1} if at + 1 < len(text) and is_letter(text[at + 1]) else set()
    return sorted(starts)


def is_letter(character: str) -> bool:
    """True for a letter or digit; False for marks, punctuation and signs that modify the letter before them."""
    return unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No")

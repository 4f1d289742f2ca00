"""Streaming: decoding one id at a time, stop strings, and cutting long texts for encoding.

The joined texts from a stream always equal `decode` of the same ids. A tokenizer's decoder determines when text is
final, so there are three streams: bytes (GPT-2 and other byte-level BPE), a window of recent tokens (words, characters,
Llama's SentencePiece), and, for decoders that rewrite earlier text, everything at the end.

The separately encoded pieces of a long text have the same ids as the whole. A pre-tokenizer splits a text into words
that the model encodes one by one, so a cut is safe at a position where it always splits. GPT-2's, Qwen2's and Llama 3's
patterns have no alternative in which a letter or digit is followed by a space, a newline or one of the marks below.
They have no look-behind, and their only look-ahead, `\\s+(?!\\S)`, concerns white space, which never ends a piece cut
here. SmolLM applies GPT-2's pattern between single digits. The split into words has this property too. Bytes and
characters can be cut anywhere. The texts of any other tokenizer are not cut.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from foretell.errors import UsageError
from foretell.text.tokenizer_json import (
    LLAMA3_PATTERN,
    LOWER_CASE,
    QWEN2_PATTERN,
    WORD_SPLIT,
    TokenizerJson,
    byte_level_split,
    digit_split,
    pattern_split,
    piece_bytes,
    split_steps,
    tokenizer_kind,
)
from foretell.text.untrusted_tokenizer import refuse_surrogates

PIECE_SIZE = 65_536  # characters; on two cores 4,096 to 262,144 encode equally fast, within 15 percent

ANYWHERE = re.compile("")
AFTER_WORD = re.compile(r"(?<=[^\W_])(?=[ \n.,。，、])")

_SPLITS = (byte_level_split(use_regex=True), pattern_split(QWEN2_PATTERN), pattern_split(LLAMA3_PATTERN), digit_split())
_CUT_AFTER_WORD = [split_steps(split) for split in (*_SPLITS, WORD_SPLIT)]
_BYTES = split_steps(byte_level_split(use_regex=False))


def safe_cut(content: TokenizerJson) -> re.Pattern[str] | None:
    """A pattern that matches where a text can be cut; None if this tokenizer's texts must not be cut."""
    cut = _cut_of_split(content)
    normalizer = content["normalizer"]
    # These two normalizers never join a letter to the space or mark after it; others are unknown.
    if cut is None or (normalizer is not None and (normalizer not in ({"type": "NFC"}, LOWER_CASE) or cut is ANYWHERE)):
        return None
    ordinary = [token for token in content["added_tokens"] if not token["special"]]
    return None if any(_crosses(token, cut) for token in ordinary) else cut


def _cut_of_split(content: TokenizerJson) -> re.Pattern[str] | None:
    split, kind = split_steps(content["pre_tokenizer"]), tokenizer_kind(content)
    if kind == "characters" or (kind == "bytes" and split == _BYTES):
        return ANYWHERE
    return AFTER_WORD if split in _CUT_AFTER_WORD else None


def _crosses(token: dict[str, Any], cut: re.Pattern[str]) -> bool:
    """True if an added token could reach across a cut, or depends on the text around it."""
    depends_on_neighbours = token["lstrip"] or token["rstrip"] or token["single_word"]
    inside = cut.search(token["content"], 1)
    return depends_on_neighbours or (inside is not None and inside.start() < len(token["content"]))


def iter_stream_pieces(texts: Iterable[str], cut: re.Pattern[str] | None) -> Iterator[str]:
    """Cut a text that arrives in parts into safe pieces; only a few pieces are in memory at a time."""
    rest = ""
    for text in texts:
        *pieces, rest = [*iter_pieces(rest + text, cut)] or [""]
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


Piece = Callable[[int], str]  # the vocabulary's string of an id; raises TokenizerError for an unknown one
Decode = Callable[[list[int]], str]

_WINDOW = 4  # earlier tokens that are kept; decoders need one, and more cost nothing

# Decoders that only append text. Others change earlier text: WordPiece joins "do not" to "don't", CTC drops repeats.
_APPENDING = frozenset({"BPEDecoder", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"})


class StreamDecoder(ABC):
    """`push` each id, then `finish`: the joined results equal `decode` of all ids."""

    @abstractmethod
    def push(self, token_id: int) -> str:
        """The text that is now final; '' while a character is incomplete. Raises TokenizerError for an unknown id."""

    @abstractmethod
    def finish(self) -> str:
        """The text that was held back. The decoder can then be used again."""


def make_stream(
    decoder: dict[str, Any] | None, piece: Piece, decode: Decode, skipped: frozenset[int], before: list[int]
) -> StreamDecoder:
    """The stream for a tokenizer's decoder (its JSON); ids in `skipped` have no text.

    before: the ids before the stream's first one. Some decoders write a space before every word except the first.
    """
    if decoder is not None and decoder["type"] == "ByteLevel":
        return ByteStream(piece, skipped)
    kind = WindowStream if _only_appends(decoder) else WholeStream
    context = [token_id for token_id in before if not is_byte(piece(token_id))]
    return kind(piece, decode, skipped, context[-_WINDOW:])


def _only_appends(decoder: dict[str, Any] | None) -> bool:
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    return all(step["type"] in _APPENDING and not _changes_earlier_text(step) for step in steps)


def _changes_earlier_text(step: dict[str, Any]) -> bool:
    """True if a step strips the end of the text, or replaces a string that two tokens can form together."""
    return step.get("stop", 0) > 0 or (step["type"] == "Replace" and len(step["pattern"].get("String", "")) != 1)


class ByteStream(StreamDecoder):
    """Byte-level vocabularies: pieces are bytes, and UTF-8 marks the end of a character."""

    def __init__(self, piece: Piece, skipped: frozenset[int]):
        self._piece, self._skipped = piece, skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        piece = self._piece(token_id)
        return "" if token_id in self._skipped else self._utf8.decode(piece_bytes(piece))

    def finish(self) -> str:
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


class WholeStream(StreamDecoder):
    """For decoders that may change any earlier text: nothing is final before the end."""

    def __init__(self, piece: Piece, decode: Decode, skipped: frozenset[int], before: list[int]):
        self._piece, self._decode, self._skipped, self._before = piece, decode, skipped, before
        self._restart()

    def _restart(self) -> None:
        self._ids = list(self._before)
        self._returned = len(self._decode(self._ids)) if self._ids else 0  # characters

    def push(self, token_id: int) -> str:
        self._piece(token_id)
        if token_id not in self._skipped:
            self._ids.append(token_id)
        return ""

    def finish(self) -> str:
        text = self._decode(self._ids)[self._returned :]
        self._restart()
        return text


class WindowStream(WholeStream):
    """For decoders that only append: the text of an id is what it adds to the text of the few ids before it."""

    def push(self, token_id: int) -> str:
        super().push(token_id)
        if token_id in self._skipped or is_byte(self._piece(token_id)):
            return ""  # a run of byte tokens is decoded as a whole: one bad byte changes all of it
        text, recent = self._decode(self._ids), self._ids[-_WINDOW:]
        added, self._returned = text[self._returned :], len(text)
        if recent_text := self._decode(recent):  # without a text, the next token would be decoded as the first of all
            self._ids, self._returned = recent, len(recent_text)
        return added


def is_byte(piece: str) -> bool:
    """True for a byte in SentencePiece's notation: '<0xE2>'."""
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


class StopStrings:
    """Passes text through up to the stop string that begins first, which is left out.

    Text that could begin a stop string is held back until that is decided. `stopped` is True after a stop string, and
    no more text passes. The result does not depend on how the text is divided into calls of `push`.
    """

    def __init__(self, stops: Sequence[str]):
        """Raises UsageError for an empty stop string, which would end every text; TokenizerError for a surrogate."""
        if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) for stop in stops):
            raise UsageError("stop strings must be a list of strings")
        if "" in stops:
            raise UsageError("a stop string is empty; give at least one character")
        for stop in stops:
            refuse_surrogates(stop, "a stop string")
        self.stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The final text before any stop string; '' after a stop."""
        if self.stopped:
            return ""
        self._held += text
        match, open_from = self._first_match(), self._first_open()
        if match is not None and match <= open_from:
            return self._stop_at(match)
        return self._release(open_from)

    def finish(self) -> str:
        """The text that was held back, up to a stop string in it, when no more text follows."""
        match = None if self.stopped else self._first_match()
        return self._release(len(self._held)) if match is None else self._stop_at(match)

    def _first_match(self) -> int | None:
        positions = [position for stop in self.stops if (position := self._held.find(stop)) >= 0]
        return min(positions, default=None)

    def _first_open(self) -> int:
        """The position where the first unfinished stop string may begin; the end if none can.

        An unfinished 'abcd' takes precedence over a complete 'c' inside it, because it may begin first.
        """
        length = len(self._held)
        for start in range(max(0, length - self._longest + 1), length):
            if any(stop.startswith(self._held[start:]) and length - start < len(stop) for stop in self.stops):
                return start
        return length

    def _stop_at(self, position: int) -> str:
        passed = self._held[:position]
        self._held, self.stopped = "", True
        return passed

    def _release(self, position: int) -> str:
        passed, self._held = self._held[:position], self._held[position:]
        return passed

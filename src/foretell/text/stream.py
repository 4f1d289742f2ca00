"""Ids to text one at a time, never showing half a character.

What a stream returns always adds up to `decode` of the same ids, for any ids. How early it can be sure depends on the
tokenizer's decoder, so there are three: bytes (GPT-2 and its kin), a window of recent tokens (words, characters,
Llama's SentencePiece), and, for decoders that rewrite text they have already produced, everything at the end.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from foretell.text.byte_level import piece_bytes

_CONTEXT = 4  # tokens kept before a new one; decoders look at one neighbour, the others cost nothing

# Decoders that only add to the text as tokens are added. WordPiece tidies "do not" into "don't", CTC drops repeats.
_APPENDING = frozenset({"BPEDecoder", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"})


class StreamDecoder(ABC):
    """`push` each id, then `finish`: the strings they return add up to `decode` of all the ids."""

    @abstractmethod
    def push(self, token: int) -> str:
        """The text that has become certain; '' while a character is incomplete. TokenizerError: not a token id."""

    @abstractmethod
    def finish(self) -> str:
        """What was held back; the decoder is then as new."""


def make_stream(
    decoder: dict[str, Any] | None,
    piece: Callable[[int], str],
    decode: Callable[[list[int]], str],
    skipped: frozenset[int],
    before: list[int],
) -> StreamDecoder:
    """The stream for a tokenizer's decoder (its JSON); `skipped` ids leave no text.

    `before` are ids whose text is already there: some decoders write a space only between words, not before the first.
    """
    if decoder is not None and decoder["type"] == "ByteLevel":
        return ByteStream(piece, skipped)
    kind = WindowStream if _only_appends(decoder) else WholeStream
    return kind(piece, decode, skipped, [token for token in before if not is_byte(piece(token))][-_CONTEXT:])


def _only_appends(decoder: dict[str, Any] | None) -> bool:
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    return all(step["type"] in _APPENDING and not _reaches_back(step) for step in steps)


def _reaches_back(step: dict[str, Any]) -> bool:
    """Whether a step takes off the text's end, or replaces what two tokens may make together."""
    return step.get("stop", 0) > 0 or (step["type"] == "Replace" and len(step["pattern"].get("String", "")) != 1)


class ByteStream(StreamDecoder):
    """Byte-level vocabularies: pieces are bytes, and UTF-8 says where a character ends."""

    def __init__(self, piece: Callable[[int], str], skipped: frozenset[int]):
        self._piece = piece
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        piece = self._piece(token)
        return "" if token in self._skipped else self._utf8.decode(piece_bytes(piece))

    def finish(self) -> str:
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


class WholeStream(StreamDecoder):
    """Decoders that may still change any text: nothing is certain before the end."""

    def __init__(
        self,
        piece: Callable[[int], str],
        decode: Callable[[list[int]], str],
        skipped: frozenset[int],
        before: list[int],
    ):
        self._piece = piece
        self._decode = decode
        self._skipped = skipped
        self._before = before
        self._restart()

    def _restart(self) -> None:
        self._ids = list(self._before)
        self._shown = len(self._decode(self._ids)) if self._ids else 0  # characters of the ids' text that are out

    def push(self, token: int) -> str:
        self._piece(token)
        if token not in self._skipped:
            self._ids.append(token)
        return ""

    def finish(self) -> str:
        text = self._decode(self._ids)[self._shown :]
        self._restart()
        return text


class WindowStream(WholeStream):
    """Decoders that only append: the new text is what a token adds to the text of the few before it."""

    def push(self, token: int) -> str:
        super().push(token)
        if token in self._skipped or is_byte(self._piece(token)):
            return ""  # a run of byte tokens is read as a whole: one bad byte spoils all of it
        added = self._advance()
        self._shrink()
        return added

    def _advance(self) -> str:
        text = self._decode(self._ids)
        added = text[self._shown :]
        self._shown = len(text)
        return added

    def _shrink(self) -> None:
        """Forget old tokens, unless the rest has no text: the next token would then be taken for the first."""
        recent = self._ids[-_CONTEXT:]
        text = self._decode(recent)
        if text:
            self._ids, self._shown = recent, len(text)


def is_byte(piece: str) -> bool:
    """Whether a piece is a byte written as SentencePiece does: '<0xE2>'."""
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")

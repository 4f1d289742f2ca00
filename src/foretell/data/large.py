"""A text file too large to hold: read in pieces, as often as it is needed, and cut without reading it."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foretell.errors import DataError

LARGE = 2**24  # bytes; from here on a file is read in pieces
BLOCK = 2**20  # bytes
LONGEST_SEARCH = 2**20  # bytes to either side of a cut in which a line break is looked for


@dataclass(frozen=True)
class LargeDocument:
    """The bytes `start` to `end` of a UTF-8 file as one text; what a `Document` has, without the text in memory."""

    path: Path
    source: str
    start: int
    end: int
    changed: int  # when the file was, in nanoseconds

    @property
    def text(self) -> str:
        """The whole text, which has to fit the memory."""
        return "".join(self.pieces())

    @property
    def utf8_bytes(self) -> int:
        """The length of the text in UTF-8, after CRLF has become LF."""
        return sum(len(piece.encode("utf-8")) for piece in self.pieces())

    def pieces(self) -> Iterator[str]:
        """The text in pieces of about a million characters, CRLF as LF. Raises DataError where it is no longer that."""
        decoder = codecs.getincrementaldecoder("utf-8")("strict")
        held = ""  # a carriage return whose line feed may come in the next block
        try:
            for block in self._blocks():
                text = held + decoder.decode(block)
                held = "\r" if text.endswith("\r") else ""
                yield text.removesuffix(held).replace("\r\n", "\n")
            if rest := held + decoder.decode(b"", final=True):
                yield rest
        except (OSError, UnicodeDecodeError):
            raise self._moved() from None

    def cut(self, fraction: float, slack: float) -> tuple[LargeDocument, LargeDocument]:
        """Two documents, the second with the last `fraction` of the bytes.

        The cut follows the line break nearest to that point where one lies within `slack` of the document, else it
        falls between characters.
        """
        size = self.end - self.start
        reach = min(int(size * slack), LONGEST_SEARCH)
        target = self.start + round(size * (1 - fraction))
        low, high = max(self.start + 1, target - reach), min(self.end - 1, target + reach + 4)
        with self.path.open("rb") as file:
            file.seek(low)
            window = file.read(high - low)
        at = low + place_of_cut(window, target - low)
        return self._part(self.start, at), self._part(at, self.end)

    def _part(self, start: int, end: int) -> LargeDocument:
        return LargeDocument(self.path, self.source, start, end, self.changed)

    def _blocks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.end - self.start
            while left:
                block = file.read(min(BLOCK, left))
                if not block or self.path.stat().st_mtime_ns != self.changed:
                    raise self._moved()
                left -= len(block)
                yield block

    def _moved(self) -> DataError:
        return DataError(f"{self.source}: the file changed while it was read; start again once it is complete")


def place_of_cut(window: bytes, target: int) -> int:
    """After the line break nearest to the target, else before the first character that begins there or later."""
    before, after = window.rfind(b"\n", 0, target) + 1, window.find(b"\n", target) + 1
    near = [place for place in (before, after) if place]
    if near:
        return min(near, key=lambda place: abs(place - target))
    while target < len(window) and window[target] & 0b1100_0000 == 0b1000_0000:  # inside a character
        target += 1
    return target


def is_clean(path: Path) -> bool:
    """Is a file UTF-8 without NUL?"""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                if b"\0" in block:
                    return False
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def has_crlf(path: Path) -> bool:
    """Does a file have a line end of Windows?"""
    last = b""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            if b"\r\n" in last + block:
                return True
            last = block[-1:]
    return False

"""Documents: texts with their source, in memory or in a large file; and the embedded corpus.

A FileDocument is read in pieces each time it is used, and cut without reading it.
"""

from __future__ import annotations

import codecs
import importlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from foretell.data.lines import CRLF, Note, TextFile
from foretell.errors import DataError

NO_TEXT = "holds no text (empty, or only whitespace); give a file with text"
BLOCK = 2**20  # bytes read at a time
CUT_SLACK = 0.02  # share of a document's length by which a cut may move to a line break
LONGEST_SEARCH = 2**20  # bytes on either side of a cut in a file that are searched for a line break


@dataclass(frozen=True)
class Document(ABC):
    """A text and its source (`notes.txt`, or `reviews.csv, line 3`)."""

    source: str

    @abstractmethod
    def pieces(self) -> Iterator[str]:
        """The text in one or several pieces."""

    @property
    def text(self) -> str:
        return "".join(self.pieces())

    @property
    def utf8_bytes(self) -> int:
        """The length of the text in UTF-8."""
        return sum(len(piece.encode("utf-8")) for piece in self.pieces())

    def separated(self, ends: Sequence[str]) -> Iterator[Document]:
        """The documents of the text, each up to one of the names in `ends`; a line end after a name is left out."""
        yield self

    @abstractmethod
    def cut(self, fraction: float) -> tuple[Document, Document]:
        """Cut into two documents; the second has the last `fraction` of the text.

        The cut is after the nearest line break within CUT_SLACK of the length, else between characters.
        """


@dataclass(frozen=True)
class TextDocument(Document):
    content: str

    def pieces(self) -> Iterator[str]:
        yield self.content

    def separated(self, ends: Sequence[str]) -> Iterator[TextDocument]:
        """See `Document.separated`."""
        for number, (start, end) in enumerate(spans_up_to(ends, self.content, 0, len(self.content)), start=1):
            yield TextDocument(f"{self.source}, document {number}", self.content[start:end])

    def cut(self, fraction: float) -> tuple[TextDocument, TextDocument]:
        """See `Document.cut`; lengths in characters. A text of two or more has no empty part."""
        position = self._cut_position(fraction)
        return TextDocument(self.source, self.content[:position]), TextDocument(self.source, self.content[position:])

    def _cut_position(self, fraction: float) -> int:
        text = self.content
        if len(text) < 2:
            return len(text)
        target = min(max(round(len(text) * (1 - fraction)), 1), len(text) - 1)
        slack = int(len(text) * CUT_SLACK)
        low, high = max(target - slack, 1), min(target + slack, len(text) - 1)
        # A cut at p is after a line break if text[p - 1] is one.
        before = text.rfind("\n", low - 1, target) + 1
        after = text.find("\n", target, high) + 1
        near = [position for position in (before, after) if position]
        return min(near, key=lambda position: abs(position - target), default=target)


@dataclass(frozen=True)
class AnsweredDocument(Document):
    """A prompt and its answer in memory. The text is the prompt followed by the answer; it is never cut."""

    prompt: str
    answer: str

    def pieces(self) -> Iterator[str]:
        yield self.prompt
        yield self.answer

    def cut(self, fraction: float) -> tuple[Document, Document]:
        raise NotImplementedError("prompts and answers are held out as a whole")


@dataclass(frozen=True)
class FileDocument(Document):
    """The bytes `start` to `end` of a UTF-8 file as one text, with CRLF read as LF, not held in memory.

    Reading raises DataError if the file was modified after `changed` (its modification time in nanoseconds).
    """

    path: Path
    start: int
    end: int
    changed: int

    def pieces(self) -> Iterator[str]:
        """The text in pieces of about a million characters. Raises DataError if the file has changed."""
        decoder = codecs.getincrementaldecoder("utf-8")("strict")
        held = ""  # a carriage return whose line feed may be in the next block
        try:
            for block in self._blocks():
                text = held + decoder.decode(block)
                held = "\r" if text.endswith("\r") else ""
                yield text.removesuffix(held).replace("\r\n", "\n")
            if rest := held + decoder.decode(b"", final=True):
                yield rest
        except (OSError, UnicodeDecodeError):
            raise self._changed() from None

    def separated(self, ends: Sequence[str]) -> Iterator[FileDocument]:
        """See `Document.separated`. The file is searched without being held in memory."""
        with self.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            for number, (start, end) in enumerate(spans_up_to(ends, content, self.start, self.end), start=1):
                yield replace(self, source=f"{self.source}, document {number}", start=start, end=end)

    def cut(self, fraction: float) -> tuple[FileDocument, FileDocument]:
        """See `Document.cut`; lengths in bytes. Reads only the bytes around the cut."""
        size = self.end - self.start
        reach = min(int(size * CUT_SLACK), LONGEST_SEARCH)
        target = self.start + round(size * (1 - fraction))
        low, high = max(self.start + 1, target - reach), min(self.end - 1, target + reach + 4)
        with self.path.open("rb") as file:
            file.seek(low)
            window = file.read(high - low)
        position = low + cut_position_in_bytes(window, target - low)
        return replace(self, end=position), replace(self, start=position)

    def _blocks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.end - self.start
            while left:
                block = file.read(min(BLOCK, left))
                if not block or self.path.stat().st_mtime_ns != self.changed:
                    raise self._changed()
                left -= len(block)
                yield block

    def _changed(self) -> DataError:
        return DataError(f"{self.source}: the file changed while it was read; start again when it is complete")


def spans_up_to(ends: Sequence[str], text: Any, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The spans of a text, or of its UTF-8, up to one of these names each; spans without a word are left out."""
    names, word = "|".join(map(re.escape, ends)), r"\S"
    pattern = rf"({names})(?:\r?\n)?"
    separators, words = map(re.compile, (pattern, word) if isinstance(text, str) else (pattern.encode(), word.encode()))
    while start < end:
        match = separators.search(text, start, end)
        text_end, span_end, following = (end, end, end) if match is None else (*match.span(1), match.end())
        if words.search(text, start, text_end):
            yield start, span_end
        start = following


def cut_position_in_bytes(window: bytes, target: int) -> int:
    """The position after the line break nearest to `target`, or else of the first character at or after it."""
    before, after = window.rfind(b"\n", 0, target) + 1, window.find(b"\n", target) + 1
    near = [position for position in (before, after) if position]
    if near:
        return min(near, key=lambda position: abs(position - target))
    while target < len(window) and window[target] & 0b1100_0000 == 0b1000_0000:  # inside a character
        target += 1
    return target


def open_large(path: Path, note: Note) -> FileDocument:
    """A file as one document. It is checked once, in pieces, so errors and notes come before its text is used."""
    file = TextFile(path)
    with file.opened() as content:
        status = path.stat()
        start = len(codecs.BOM_UTF8) if content.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    document = FileDocument(str(file), path, start, status.st_size, status.st_mtime_ns)
    if start:
        note("byte order mark dropped", str(file))
    is_clean, has_crlf = scan(path)
    if not is_clean:
        for _ in file.lines(lambda what, where: None):  # raises an error that names the line
            pass
    if not any(piece.strip() for piece in document.pieces()):
        raise DataError(f"{file}: {NO_TEXT}")
    if has_crlf:
        note(CRLF, str(file))
    return document


def scan(path: Path) -> tuple[bool, bool]:
    """(True if a file is UTF-8 without NUL, True if it has Windows line ends)."""
    decoder, has_crlf, last = codecs.getincrementaldecoder("utf-8")("strict"), False, b""
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                if b"\0" in block:
                    return False, has_crlf
                decoder.decode(block)
                has_crlf, last = has_crlf or b"\r\n" in last + block, block[-1:]
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False, has_crlf
    return True, has_crlf


# --- the embedded corpus: the language reference that every Python has for `help()` ----------------------------------
EMBEDDED_CORPUS = "the language reference inside Python"
# Shorter remainders are a headline and a "see also"; their body was in another topic.
SHORTEST_TOPIC = 200  # characters


def embedded_corpus() -> Iterator[TextDocument]:
    """The reference topics, sorted by name, without paragraphs that occurred in an earlier topic.

    Topics quote each other: "compound" contains all of "if", "while" and "for", and 90,760 of the 464,970 characters
    (79 topics, Python 3.11.7) are in repeated paragraphs. Without deduplication, validation text would be in the
    training text. Paragraphs are separated by blank lines and compared with normalised whitespace. 68 topics with
    372,303 characters remain. Other versions of Python differ in size, so compare results only within one version.
    Licensed with Python (PSF).

    Raises DataError if Python was packaged without the module `pydoc_data`.
    """
    topics = _reference_topics()
    seen: set[str] = set()
    for topic in sorted(topics):
        text = _unseen_paragraphs(topics[topic], seen)
        if len(text) >= SHORTEST_TOPIC:
            yield TextDocument(f"Python reference, topic {topic}", text)


def describe_embedded_corpus() -> str:
    """The version and size of the corpus in one line."""
    texts = [document.text for document in embedded_corpus()]
    size = sum(len(text.encode("utf-8")) for text in texts)
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{EMBEDDED_CORPUS} {version}: {len(texts)} topics, {size:,} bytes, no paragraph twice"


def _reference_topics() -> dict[str, str]:
    """Import the topics only when needed: half a megabyte, which some Linux distributions omit."""
    try:
        return importlib.import_module("pydoc_data.topics").topics
    except ModuleNotFoundError:
        raise DataError(
            f"{sys.executable}: this Python has no language reference (module pydoc_data); give text files instead"
        ) from None


def _unseen_paragraphs(text: str, seen: set[str]) -> str:
    """The paragraphs that are not in `seen`, and add them to it; an empty string if there are none."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        key = " ".join(paragraph.split())
        if key and key not in seen:
            seen.add(key)
            kept.append(paragraph.strip("\n"))
    return "\n\n".join(kept) + "\n" if kept else ""

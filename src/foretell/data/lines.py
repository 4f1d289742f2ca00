"""The lines of text files, plain or compressed: decoded strictly, with limits, because a small file can expand
ten-thousandfold."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import io
import logging
import lzma
import math
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from foretell.errors import DataError, did_you_mean

STANDARD_INPUT = "standard input"
CRLF = "CRLF line ends read as LF"
ZIP = ".zip"
SPREADSHEETS = (".xlsx", ".xls", ".ods")
NEXT_BLOCK = 2**20  # bytes after a line that is not UTF-8, in which an image or archive has a NUL
FIRST_BLOCK = 2**13  # bytes checked for NUL before the first line, so that a disk image is refused at once
LONGEST_LINE = 2**26  # bytes, in a compressed file
LARGEST_TEXT = 2**28  # bytes of a prompt, and of a compressed file that is held in memory as one text
# A file that expands by more is refused after these bytes, and before its first line if it is small
MOST_RATIO, ALWAYS_READ, LARGEST_CHECKED = 100, 2**23, 2**25
LARGEST_MEMBER = 2**32  # bytes of a file in a zip
MOST_MEMBERS = 10_000  # files in a zip; its list is read again for each of them
ZSTD_HEADER = 18  # bytes of the longest header of a zstd frame
NOTES = ("readme", "license", "about", ".")  # beginnings of names of files in a zip, after any "_", without data
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
CONVERT = "convert it, for example: iconv -f CP1252 -t UTF-8 IN > OUT"

Note = Callable[[str, str], None]  # takes a change to the input, and its place

logger = logging.getLogger(__name__)


def log_note(what: str, where: str) -> None:
    logger.warning(f"{what}: {where}")


@dataclass(frozen=True)
class TextFile:
    """A text file: plain, compressed, a `member` of a zip, or standard input (path None)."""

    path: Path | None
    member: str = ""

    def __str__(self) -> str:
        if self.path is None:
            return STANDARD_INPUT
        return f"{self.path}: {self.member}" if self.member else str(self.path)

    @property
    def suffix(self) -> str:
        """The suffix of the content: .jsonl for x.jsonl.gz."""
        if self.path is None:
            return ""
        return Path(self.member).suffix.lower() if self.member else content_suffix(self.path)

    @property
    def is_compressed(self) -> bool:
        return self.path is not None and (bool(self.member) or self.path.suffix.lower() in COMPRESSIONS)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The decompressed content; DataError for a file that cannot be read or is damaged."""
        if self.path is None:
            yield standard_input()
            return
        with reading(self.path), self._open(self.path) as file:
            yield file

    def _open(self, path: Path) -> Any:
        if self.member:
            return open_member(path, self.member)
        opened = COMPRESSIONS.get(path.suffix.lower())
        return path.open("rb") if opened is None else opened(path)

    def lines(
        self, note: Note = log_note, encoding: str = "utf-8", advice: str = CONVERT, most_bytes: float = math.inf
    ) -> Iterator[str]:
        """The decoded lines with their ends, split only at LF; str.splitlines also splits at U+2028 and form feeds.

        advice: the end of the message for a file in another encoding. most_bytes: the limit of the content.
        Raises DataError, with the line.
        """
        offset = 0
        if self.is_compressed and self.path is not None and self.path.stat().st_size <= LARGEST_CHECKED:
            with self.opened() as file:  # refuse a small file before any row is held: 194 kB took 2.9 GB as rows
                deque(self._bounded_lines(file, most_bytes), maxlen=0)
        with self.opened() as file:
            block = file.peek(FIRST_BLOCK)[:FIRST_BLOCK] if isinstance(file, io.BufferedReader) else b""
            if b"\0" in block and b"\n" not in block:
                raise not_text(f"{self}, line 1", block, block.index(b"\0"), 0, encoding, advice)
            is_bounded = self.is_compressed or most_bytes < math.inf
            lines = self._bounded_lines(file, most_bytes) if is_bounded else file
            for line_number, line in enumerate(lines, start=1):
                where = f"{self}, line {line_number}"
                try:
                    text = line.decode(encoding)
                except UnicodeDecodeError as error:
                    following = block if self.path is None else file.read(NEXT_BLOCK)  # a pipe may have no more yet
                    raise not_text(where, line + following, error.start, offset, encoding, advice) from None
                if "\0" in text:
                    raise not_text(where, line, line.index(b"\0"), offset, encoding, advice)
                if line_number == 1 and text.startswith("\ufeff"):
                    note("byte order mark dropped", str(self))
                    text = text[1:]
                offset += len(line)
                yield text

    def text_lines(
        self, note: Note = log_note, encoding: str = "utf-8", advice: str = CONVERT, most_bytes: float = math.inf
    ) -> Iterator[str]:
        """`lines` with LF for CRLF, noted once. Tables do not use them, because their cells can contain CRLF."""
        has_crlf = False
        for line in self.lines(note, encoding, advice, most_bytes):
            if line.endswith("\r\n"):
                if not has_crlf:
                    note(CRLF, str(self))
                has_crlf, line = True, line[:-2] + "\n"
            yield line

    def text(
        self, note: Note = log_note, encoding: str = "utf-8", advice: str = CONVERT, most_bytes: float = math.inf
    ) -> str:
        """The content in memory, with LF as line ends."""
        text = io.StringIO()  # 67 MB in lines of one letter take 129 MB here; as a list of lines, they take 2.4 GB
        most_bytes = min(LARGEST_TEXT, most_bytes) if self.is_compressed else most_bytes
        text.writelines(self.text_lines(note, encoding, advice, most_bytes))
        return text.getvalue()

    def prompt(self, most_bytes: int = LARGEST_TEXT) -> str:
        """The content as a prompt: its final line end only ends the last line, so it is left out."""
        return self.text(most_bytes=most_bytes).removesuffix("\n")

    def _bounded_lines(self, file: BinaryIO, most_bytes: float) -> Iterator[bytes]:
        if self.path is None or not self.is_compressed:
            content = file.read(int(most_bytes) + 1)
            if len(content) > most_bytes:
                raise DataError(f"{self}: more than {most_bytes:,} bytes; give a shorter text")
            yield from io.BytesIO(content)
            return
        total, most_expanded = 0, max(ALWAYS_READ, MOST_RATIO * self.path.stat().st_size)
        while line := file.readline(LONGEST_LINE + 1):
            total += len(line)
            if len(line) > LONGEST_LINE or total > most_bytes:
                raise DataError(
                    f"{self}: too large to read compressed (a line of {LONGEST_LINE:,} bytes or a text of "
                    f"{LARGEST_TEXT:,} at most); decompress it first"
                )
            if total > most_expanded:
                raise DataError(
                    f"{self}: expands to more than {MOST_RATIO} times its size, which no text does; decompress it first"
                )
            yield line


def standard_input() -> Any:
    """The bytes of standard input as a buffered file; a DataError if it is closed."""
    if sys.stdin is None:
        raise DataError("standard input is closed; pipe something into it, or name a file")
    return sys.stdin.buffer


def not_text(where: str, content: bytes, index: int, offset: int, encoding: str, advice: str) -> DataError:
    """The error for bytes that are not text. content[0] is at `offset`; content[index] is the first wrong byte.

    `content` extends beyond the line, because an image or archive seldom has a NUL in its first line, and advice to use
    iconv would be wrong for such a file.
    """
    if b"\0" not in content:
        what = f"not {encoding.upper()} (byte 0x{content[index]:02x} at offset {offset + index})"
        return DataError(f"{where}: {what}; {advice}")
    if content.startswith(UTF16_MARKS):
        return DataError(f"{where}: this is UTF-16; save it as UTF-8, or convert it: iconv -f UTF-16 -t UTF-8 IN > OUT")
    return DataError(f"{where}: NUL bytes, so this is not a text; give .txt, .jsonl, .json, .csv or .tsv")


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn errors of the system and of decompressors into a DataError."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise DataError(
                f"{error.filename or path}: cannot be read ({error.strerror}); check the path and its permissions"
            ) from error
        raise damaged(path, error) from error  # from a decompressor
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise damaged(path, error) from error


def damaged(path: str | Path, error: Exception) -> DataError:
    return DataError(f"{path}: damaged, cut short or not compressed this way ({error}); get it again")


def content_suffix(path: Path) -> str:
    """The suffix of a file's content: .jsonl for x.jsonl.gz."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix


def find_file(path: Path) -> TextFile:
    """The text file at a path, or the only one in a zip; DataError for anything else."""
    files = find_files(path)
    if len(files) != 1:
        names = ", ".join(file.member for file in files[:4]) or "none"
        raise DataError(f"{path}: holds {len(files):,} files ({names}), not one; unpack it and name the right one")
    return files[0]


def find_files(path: Path) -> list[TextFile]:
    """The text file at a path, or those in a zip, sorted by name and without notes such as _about.txt."""
    with reading(path):
        if not path.exists():
            raise DataError(f"{path}: no such file{nearest_name(path) or '; check the path'}")
        if path.is_dir():
            raise DataError(f"{path}: is a folder; give a file")
        if not path.is_file():
            raise DataError(f"{path}: not a regular file; give a file, or - for standard input")
        if path.suffix.lower() in SPREADSHEETS:
            raise DataError(f"{path}: a spreadsheet; save it as CSV")
        return zip_members(path) if path.suffix.lower() == ZIP else [TextFile(path)]


def zip_members(path: Path) -> list[TextFile]:
    """The files in a zip, without notes."""
    with zipfile.ZipFile(path) as archive:
        named = [(Path(member.filename).name.lower().lstrip("_"), member) for member in archive.infolist()]
    members = [member for name, member in named if not member.is_dir() and not name.startswith(NOTES)]
    for member in members:
        if member.file_size > LARGEST_MEMBER:
            raise DataError(f"{path}: {member.filename} has {member.file_size:,} bytes; unpack the zip first")
    if len(members) > MOST_MEMBERS:
        raise DataError(f"{path}: holds {len(members):,} files, more than {MOST_MEMBERS:,}; unpack the zip first")
    # Members end at their stated sizes, so the sum of the sizes bounds the bytes read
    if sum(member.file_size for member in members) > max(ALWAYS_READ, MOST_RATIO * path.stat().st_size):
        raise DataError(f"{path}: its files expand to more than {MOST_RATIO} times its size; unpack the zip first")
    return [TextFile(path, name) for name in sorted(member.filename for member in members)]


def nearest_name(path: Path) -> str:
    """A suggestion for the first missing part of a path."""
    while not path.parent.exists():
        path = path.parent
    return did_you_mean(path.name, (entry.name for entry in path.parent.iterdir())) if path.parent.is_dir() else ""


def open_member(path: Path, member: str) -> Any:
    """The content of a file in a zip. The archive object can be closed: its file stays open while a member is."""
    with zipfile.ZipFile(path) as archive:
        try:
            return archive.open(member)
        except (NotImplementedError, RuntimeError) as error:  # an unknown method; encrypted
            raise zipfile.BadZipFile(str(error)) from error


def open_zstd(path: Path) -> Any:
    """The decompressed content of a zstd file, by Python's own module (3.14) or the package zstandard."""
    with suppress(ModuleNotFoundError):
        return importlib.import_module("compression.zstd").open(path, "rb")
    try:
        return io.BufferedReader(ZstdReader(path, importlib.import_module("zstandard")))
    except ModuleNotFoundError:
        advice = f"pip install 'foretell[data]', or decompress it: zstd -d {path.name}"
        raise DataError(f"{path}: zstd needs a package: {advice}") from None


class ZstdReader(io.RawIOBase):
    """A zstd file by the package zstandard, whose own reader has no `readline` and does not detect truncation.

    Here truncation is detected by the size in the header of the first frame, which the zstd program writes.
    """

    def __init__(self, path: Path, zstandard: Any):
        self.file = path.open("rb")
        try:
            self.stated_size = zstandard.frame_content_size(self.file.read(ZSTD_HEADER))  # -1: not stated
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from error
        self.file.seek(0)
        self.reader, self.error = zstandard.open(self.file, "rb"), zstandard.ZstdError
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = self.reader.readinto(buffer)
        except self.error as error:
            raise EOFError(str(error)) from error
        self.count += count
        if not count and self.count < self.stated_size:
            raise EOFError(f"it ends after {self.count:,} of {self.stated_size:,} bytes")
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


COMPRESSIONS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": open_zstd,
}

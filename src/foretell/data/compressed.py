"""Read text files compressed with gzip, bzip2, xz or zstd, within bounds: a small file can expand ten-thousandfold."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from foretell.errors import DataError

LONGEST_LINE = 2**26  # bytes
LARGEST_TEXT = 2**28  # bytes of a file that is one text; it is held in memory
READ_AT_A_TIME = 2**20  # bytes
HEADER_BYTES = 18  # the longest header of a zstd frame


class DecompressedLines:
    """The lines of a compressed file, with the two methods that `records.iter_lines` needs of a file.

    `largest`: the most bytes in all, None for a file of records. Raises DataError beyond the bounds.
    """

    def __init__(self, file: BinaryIO, name: str, largest: int | None):
        self.file, self.name, self.largest = file, name, largest

    def __iter__(self) -> Iterator[bytes]:
        total = 0
        while line := self.file.readline(LONGEST_LINE + 1):
            total += len(line)
            if len(line) > LONGEST_LINE or (self.largest is not None and total > self.largest):
                raise DataError(
                    f"{self.name}: too large to read compressed (a line of {LONGEST_LINE:,} bytes or a text of "
                    f"{LARGEST_TEXT:,} at most); decompress it first"
                )
            yield line

    def read(self, count: int) -> bytes:
        return self.file.read(count)


@contextmanager
def open_compressed(path: Path, is_one_text: bool) -> Iterator[DecompressedLines]:
    """The decompressed lines of a file whose suffix is in COMPRESSIONS; a damaged file is a DataError."""
    try:
        with COMPRESSIONS[path.suffix.lower()](path) as file:
            yield DecompressedLines(file, str(path), LARGEST_TEXT if is_one_text else None)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged, cut short or not compressed this way ({error}); get it again") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise DataError(f"{path}: damaged, cut short or not compressed this way ({error}); get it again") from error


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
    """A zstd file by the package zstandard, whose own reader has no `readline` and takes a cut file for a whole one.

    A cut file is found by the size that its first frame states, as those of the program zstd do.
    """

    def __init__(self, path: Path, zstandard: Any):
        self.file = path.open("rb")
        try:
            self.stated_size = zstandard.frame_content_size(self.file.read(HEADER_BYTES))  # -1: not stated
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

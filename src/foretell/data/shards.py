"""Token stores: ids on disk, written once (`shard_writer`), checked before use and read as needed.

A store is a folder with, for every split NAME (`train`, `validation`),

    NAME-00000.npy ...     the concatenated token ids of its documents, uint16 or uint32, cut into shards
    NAME-documents.npy     int64, the start of each document in that sequence
    index.json             the expected files, and the tokenizer's fingerprint; written last

The `.npy` files are as `numpy.save` writes them, with a header of 128 bytes. A store without an index is unfinished, so
a writer that is killed leaves nothing that can be opened by mistake.

Shards are read, not memory-mapped: if one is overwritten or truncated during training, that is an error, whereas a
mapping would give wrong tokens or end the process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretell.errors import DataError, UsageError, did_you_mean
from foretell.storage.files import read_bytes, sha256

FORMAT = 1
INDEX = "index.json"
HEADER_BYTES = 128
LARGEST_INDEX = 2**24  # bytes; enough for 130,000 shards of about 120 bytes each
LARGEST_COUNT = 2**53  # limit of tokens, documents and bytes: all JSON readers represent integers up to it exactly
DOCUMENT_DTYPE = np.dtype("<i8")
VERIFIED_AT_A_TIME = 2**22  # values
SPLIT_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True)
class ShardRecord:
    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class SplitRecord:
    """One split in the index; `bytes` is the length of its texts in UTF-8."""

    tokens: int
    documents: int
    bytes: int
    documents_sha256: str
    shards: tuple[ShardRecord, ...]


def token_dtype(vocab_size: int) -> np.dtype:
    """The little-endian type for ids below `vocab_size`: uint16 up to 65,536, then uint32."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def npy_header(dtype: np.dtype, count: int) -> bytes:
    """A header of 128 bytes for any count, so that it can be rewritten at the end (`.npy` format version 1.0)."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
    return start + text.ljust(HEADER_BYTES - len(start) - 1).encode("ascii") + b"\n"


def shard_name(split_name: str, index: int) -> str:
    return f"{split_name}-{index:05d}.npy"


def documents_name(split_name: str) -> str:
    return f"{split_name}-documents.npy"


class TokenStream:
    """One split as one long sequence of ids, read from its shards as needed.

    `document_starts` (documents,) int64, increasing, the first 0; `bytes` is the length of the texts in UTF-8.
    """

    def __init__(self, directory: Path, name: str, record: SplitRecord, dtype: np.dtype):
        self.name = name
        self.bytes = record.bytes
        self.document_starts = ValueFile(directory / documents_name(name), DOCUMENT_DTYPE, record.documents).read()
        self._shards = [ValueFile(directory / shard.file, dtype, shard.tokens) for shard in record.shards]
        self._ends = list(accumulate(shard.tokens for shard in record.shards))
        self._tokens = record.tokens

    def __len__(self) -> int:
        return self._tokens

    def read(self, start: int, count: int) -> np.ndarray:
        """Ids `start` to `start + count` (count,) int64, across shard borders.

        Raises UsageError if the stream is too short, DataError if a shard changed since it was opened.
        """
        if start < 0 or count < 0 or start + count > len(self):
            raise UsageError(f"split {self.name!r} has {len(self):,} tokens, not {count:,} from {start:,} on")
        ids = np.empty(count, dtype=np.int64)
        filled = 0
        shard = bisect_right(self._ends, start)
        while filled < count:
            offset = start + filled - (self._ends[shard] - self._shards[shard].count)
            piece = self._shards[shard].read(offset, count - filled)
            ids[filled : filled + len(piece)] = piece
            filled += len(piece)
            shard += 1
        return ids


class ValueFile:
    """The values of an `.npy` file with a known header; header and length are checked when it is opened.

    The file is opened for each read (about 10 microseconds), because a store can have more shards than a process can
    have open files.
    """

    def __init__(self, path: Path, dtype: np.dtype, count: int):
        _check_header(path, dtype, count)
        self.path, self.dtype, self.count = path, dtype, count
        with _readable(path):
            self._stamp = _stamp(path.stat())

    def read(self, start: int = 0, count: int | None = None) -> np.ndarray:
        """At most `count` values from `start` on. Raises DataError if the file has changed."""
        count = self.count - start if count is None else min(count, self.count - start)
        with _readable(self.path), self.path.open("rb") as file:
            values = np.empty(count, dtype=self.dtype)
            file.seek(HEADER_BYTES + start * self.dtype.itemsize)
            filled = file.readinto(values.data) if count else 0
            if filled != values.nbytes or _stamp(os.fstat(file.fileno())) != self._stamp:
                raise DataError(f"{self.path}: changed after it was opened; resume from the last checkpoint")
        return values


@dataclass(frozen=True)
class TokenStore:
    """A finished store: `TokenStore.open(folder, fingerprint)`, then `.split("train")`."""

    directory: Path
    fingerprint: str
    vocab_size: int
    splits: Mapping[str, SplitRecord]
    extra: Mapping[str, Any]

    @property
    def dtype(self) -> np.dtype:
        return token_dtype(self.vocab_size)

    @classmethod
    def open(cls, directory: str | Path, fingerprint: str | None = None) -> Self:
        """Read the index and compare every file's header and length with it; file contents are not read.

        Raises DataError for a missing, unfinished or damaged store, and if `fingerprint` is given and the store was
        written with another tokenizer.
        """
        directory = Path(directory)
        index = _read_index(directory)
        if fingerprint is not None and fingerprint != index["tokenizer"]:
            raise DataError(
                f"{directory}: written with tokenizer {index['tokenizer'][:80]!r}, but {fingerprint[:80]!r} is given; "
                "give the tokenizer it was written with, or tokenize the texts again"
            )
        index_path = directory / INDEX
        splits = {name: _to_split_record(value, name, index_path) for name, value in index["splits"].items()}
        store = cls(directory, index["tokenizer"], index["vocab_size"], splits, index["extra"])
        for name, record in splits.items():
            _check_header(directory / documents_name(name), DOCUMENT_DTYPE, record.documents)
            for shard in record.shards:
                _check_header(directory / shard.file, store.dtype, shard.tokens)
        return store

    def split(self, name: str) -> TokenStream:
        """One split's tokens. Raises DataError for an unknown name."""
        if name not in self.splits:
            known = ", ".join(self.splits) or "none"
            raise DataError(f"{self.directory}: no split {name!r} among {known}{did_you_mean(name, self.splits)}")
        return TokenStream(self.directory, name, self.splits[name], self.dtype)

    def verify(self) -> None:
        """Read every file: hashes, ids within the vocabulary, increasing document starts. Raises DataError."""
        for name, record in self.splits.items():
            _verify_hash(self.directory / documents_name(name), record.documents_sha256)
            for shard in record.shards:
                _verify_hash(self.directory / shard.file, shard.sha256)
                _verify_ids(self.directory / shard.file, self.dtype, shard.tokens, self.vocab_size)
            starts = ValueFile(self.directory / documents_name(name), DOCUMENT_DTYPE, record.documents).read()
            if not _are_starts(starts, record.tokens):
                raise _damaged(self.directory / documents_name(name), "document starts that do not increase from 0")


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path}: {what}; the token store is damaged, write it again from the texts")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise _damaged(path, "this file is missing") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def _read_index(directory: Path) -> dict[str, Any]:
    """The index; its own fields are checked, but not its splits."""
    path = directory / INDEX
    with _readable(path):
        if not path.is_file():
            raise DataError(f"{directory}: no token store here ({INDEX} is missing); write one, or give its folder")
        content = read_bytes(path, LARGEST_INDEX, DataError, follow_links=True)
    try:
        index = json.loads(content)
    except (ValueError, RecursionError):
        raise _damaged(path, "not JSON") from None
    if isinstance(index, dict) and index.get("format", FORMAT) != FORMAT:
        shown = repr(index["format"])[:20]
        raise DataError(
            f"{path}: format {shown}, and this version reads {FORMAT}; write the store again from the texts"
        )
    kinds = {"format": int, "tokenizer": str, "vocab_size": int, "dtype": str, "splits": dict, "extra": dict}
    index = _checked_record(index, kinds, path, "the index")
    if not 1 <= index["vocab_size"] <= 2**32 or index["dtype"] != token_dtype(index["vocab_size"]).name:
        raise _damaged(path, f"vocabulary {index['vocab_size']} and type {index['dtype'][:20]!r} do not agree")
    return index


def _to_split_record(value: Any, name: str, path: Path) -> SplitRecord:
    """A checked split of the index. Its file names must be a writer's, so none leads out of the folder."""
    if not SPLIT_NAME.fullmatch(name):
        raise _damaged(path, f"a split called {name[:40]!r}")
    kinds = {"tokens": int, "documents": int, "bytes": int, "documents_sha256": str, "shards": list}
    split = _checked_record(value, kinds, path, f"split {name!r}")
    shards = []
    for index, entry in enumerate(split["shards"]):
        where = f"shard {index} of {name!r}"
        shard = ShardRecord(**_checked_record(entry, {"file": str, "tokens": int, "sha256": str}, path, where))
        if shard.file != shard_name(name, index) or shard.tokens == 0:
            raise _damaged(path, f"{where} is {shard.file[:80]!r} with {shard.tokens} tokens")
        shards.append(shard)
    record = replace(SplitRecord(**split), shards=tuple(shards))
    if record.tokens != sum(shard.tokens for shard in shards) or record.documents > record.tokens:
        raise _damaged(path, f"split {name!r} and its shards disagree about their sizes")
    return record


def _checked_record(value: Any, kinds: Mapping[str, type], path: Path, what: str) -> dict[str, Any]:
    """A JSON object with exactly these fields of exactly these types, and no negative or absurd number."""
    if not isinstance(value, dict) or value.keys() != kinds.keys():
        raise _damaged(path, f"{what} does not have the fields {', '.join(kinds)}")
    for key, kind in kinds.items():
        if type(value[key]) is not kind or (kind is int and not 0 <= value[key] <= LARGEST_COUNT):
            raise _damaged(path, f"{what} has an invalid {key!r}")
    return value


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_header(path: Path, dtype: np.dtype, count: int) -> None:
    """Compare the header with the expected bytes; it is never parsed."""
    with _readable(path):
        size = path.stat().st_size
        expected = HEADER_BYTES + count * dtype.itemsize
        if size != expected:
            raise _damaged(path, f"{size:,} bytes, but {expected:,} according to the index")
        with path.open("rb") as file:
            if file.read(HEADER_BYTES) != npy_header(dtype, count):
                raise _damaged(path, f"not the header of {count:,} values of type {dtype.name}")


def _verify_hash(path: Path, expected: str) -> None:
    with _readable(path):
        if sha256(path) != expected:
            raise _damaged(path, "not the content that was written (its SHA-256 differs)")


def _verify_ids(path: Path, dtype: np.dtype, count: int, vocab_size: int) -> None:
    values = ValueFile(path, dtype, count)
    largest = max(int(values.read(start, VERIFIED_AT_A_TIME).max()) for start in range(0, count, VERIFIED_AT_A_TIME))
    if largest >= vocab_size:
        raise _damaged(path, f"token id {largest} outside the vocabulary of {vocab_size:,}")


def _are_starts(starts: np.ndarray, tokens: int) -> bool:
    if len(starts) == 0:
        return tokens == 0
    return starts[0] == 0 and starts[-1] < tokens and bool(np.all(starts[1:] > starts[:-1]))

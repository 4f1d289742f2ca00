"""Token ids on disk: written once, memory-mapped, checked before they are used.

A store is a folder with, for every split NAME (`train`, `validation`),

    NAME-00000.npy ...     the token ids of its documents one after the other, uint16 or uint32, cut into shards
    NAME-documents.npy     int64, where each document starts in that stream
    index.json             what there should be, with the tokenizer's fingerprint; written last

The `.npy` files are what `numpy.save` writes, with a header of 128 bytes. A store without an index is unfinished, so a
writer that is killed at any moment leaves nothing that opens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from foretell.errors import DataError, OutputError, UsageError, did_you_mean

FORMAT = 1
INDEX = "index.json"
HEADER_BYTES = 128
LARGEST_INDEX = 2**24  # bytes; a shard takes about 120, so this is 130,000 shards
LARGEST_COUNT = 2**53  # tokens, documents, bytes: whole numbers that every JSON reader keeps exactly
DOCUMENT_DTYPE = np.dtype("<i8")
SPLIT_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True)
class ShardRecord:
    """One shard as the index states it."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class SplitRecord:
    """One split as the index states it; `bytes` is the length of its texts in UTF-8."""

    tokens: int
    documents: int
    bytes: int
    documents_sha256: str
    shards: tuple[ShardRecord, ...]


def token_dtype(vocab_size: int) -> np.dtype:
    """The little-endian type that holds every id below `vocab_size`: uint16 up to 65,536 of them, then uint32."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


# --- writing ---------------------------------------------------------------------------------------------------------


class TokenWriter:
    """Writes one split; the files get their names when the `with` block ends well, and are removed when it does not.

        with TokenWriter(folder, "train", vocab_size) as writer:
            writer.add_document(ids, text_bytes)
        write_index(folder, fingerprint, vocab_size, {"train": writer.record})

    Memory: 8 bytes a document, and a piece of one. Raises UsageError for a name or size that makes no sense and
    OutputError where the folder holds a store already or cannot be written (disk full, no permission).
    """

    def __init__(self, directory: str | Path, split_name: str, vocab_size: int, shard_tokens: int = 2**26):
        if not SPLIT_NAME.fullmatch(split_name):
            raise UsageError(f"split name {split_name!r}: use small letters, digits and _, a letter first")
        if not 1 <= vocab_size <= 2**32 or shard_tokens < 1:
            raise UsageError(f"vocab_size {vocab_size}, shard_tokens {shard_tokens}: give 1 to 2**32, and 1 or more")
        self.directory = Path(directory)
        self.split_name = split_name
        self.vocab_size = vocab_size
        self.shard_tokens = shard_tokens
        self.dtype = token_dtype(vocab_size)
        self._starts = array("q")
        self._tokens = 0
        self._text_bytes = 0
        self._shards: list[ShardRecord] = []
        self._file: BinaryIO | None = None
        self._file_tokens = 0
        self._record: SplitRecord | None = None
        _make_store_directory(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self._finish()
        except BaseException:
            self.discard()
            raise

    @property
    def record(self) -> SplitRecord:
        """What `write_index` needs; there once the `with` block has ended."""
        if self._record is None:
            raise UsageError(f"split {self.split_name!r} is not written yet: its record exists after the with block")
        return self._record

    def add_document(self, ids: np.ndarray, text_bytes: int) -> None:
        """Append one document: `ids` (tokens,) of any integer type, `text_bytes` the length of its text in UTF-8.

        A document without ids counts its bytes and no more, so that starts always increase.
        Raises DataError for an id outside the vocabulary.
        """
        self.add_pieces([ids], text_bytes)

    def add_pieces(self, pieces: Iterable[np.ndarray], text_bytes: int) -> None:
        """Append one document whose ids come in pieces, each written as it comes; else as `add_document`."""
        assert self._record is None, "the split is finished"
        self._text_bytes += text_bytes
        start = self._tokens
        for piece in pieces:
            ids = self._checked(piece)
            if len(ids) and self._tokens == start:
                self._starts.append(start)
            self._tokens += len(ids)
            while len(ids):
                ids = ids[self._append(ids) :]

    def discard(self) -> None:
        """Remove everything written under temporary names."""
        if self._file is not None:
            # Closing writes what is buffered, which fails on a full disk once more; these bytes are not wanted.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        for name in (*self._names(), _documents_name(self.split_name)):
            _temporary(self.directory / name).unlink(missing_ok=True)

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        ids = np.asarray(ids)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise UsageError(f"ids of shape {ids.shape} and type {ids.dtype}: give a row of integers")
        # Before the cast: 65,536 would quietly become 0.
        if ids.size and not 0 <= (worst := ids.min() if ids.min() < 0 else ids.max()) < self.vocab_size:
            raise DataError(
                f"{self.directory}: token id {worst} in document {len(self._starts)} of {self.split_name!r} is outside "
                f"the vocabulary of {self.vocab_size:,}; use the tokenizer that this vocabulary size belongs to"
            )
        return ids.astype(self.dtype)

    def _append(self, ids: np.ndarray) -> int:
        """Write as many ids as the shard still takes, and say how many."""
        path = _temporary(self.directory / _shard_name(self.split_name, len(self._shards)))
        with _writing(path):
            if self._file is None:
                self._file = path.open("wb")
                self._file.write(_npy_header(self.dtype, 0))
            count = min(len(ids), self.shard_tokens - self._file_tokens)
            self._file.write(ids[:count].data)
        self._file_tokens += count
        if self._file_tokens == self.shard_tokens:
            self._finish_shard()
        return count

    def _finish_shard(self) -> None:
        name = _shard_name(self.split_name, len(self._shards))
        path = _temporary(self.directory / name)
        assert self._file is not None
        with _writing(path):
            self._file.seek(0)
            self._file.write(_npy_header(self.dtype, self._file_tokens))
            _sync(self._file)
            self._file.close()
            self._shards.append(ShardRecord(name, self._file_tokens, _sha256(path)))
        self._file, self._file_tokens = None, 0

    def _finish(self) -> None:
        if self._file is not None:
            self._finish_shard()
        name = _documents_name(self.split_name)
        path = _temporary(self.directory / name)
        with _writing(path), path.open("wb") as file:
            starts = np.array(self._starts, dtype=DOCUMENT_DTYPE)
            file.write(_npy_header(DOCUMENT_DTYPE, len(starts)) + starts.tobytes())
            _sync(file)
        with _writing(self.directory):
            digest = _sha256(path)
            for finished in (*(shard.file for shard in self._shards), name):
                _temporary(self.directory / finished).replace(self.directory / finished)
            _sync_directory(self.directory)
        self._record = SplitRecord(self._tokens, len(self._starts), self._text_bytes, digest, tuple(self._shards))

    def _names(self) -> Iterator[str]:
        """Every shard begun so far."""
        return (_shard_name(self.split_name, number) for number in range(len(self._shards) + 1))


def write_index(
    directory: str | Path,
    tokenizer_fingerprint: str,
    vocab_size: int,
    splits: Mapping[str, SplitRecord],
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Make the written splits a store, in one step: before it there is none, after it the whole one.

    `extra` is kept under that key for whoever reads the store (any JSON). Raises OutputError.
    """
    path = Path(directory) / INDEX
    index = {
        "format": FORMAT,
        "tokenizer": tokenizer_fingerprint,
        "vocab_size": vocab_size,
        "dtype": token_dtype(vocab_size).name,
        "splits": {name: asdict(record) for name, record in splits.items()},
        "extra": dict(extra or {}),
    }
    content = json.dumps(index, indent=1, ensure_ascii=False).encode("utf-8")
    with _writing(path):
        try:
            with _temporary(path).open("wb") as file:
                file.write(content)
                _sync(file)
            _temporary(path).replace(path)
        finally:
            _temporary(path).unlink(missing_ok=True)
        _sync_directory(path.parent)


def _make_store_directory(directory: Path) -> None:
    with _writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / INDEX).exists():
            raise OutputError(f"{directory}: holds a token store already; remove it or choose another folder")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror}); make room or choose another folder"
        ) from error


def _npy_header(dtype: np.dtype, count: int) -> bytes:
    """128 bytes whatever the count, so that it can be filled in at the end (format version 1.0 of `.npy`)."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
    return start + text.ljust(HEADER_BYTES - len(start) - 1).encode("ascii") + b"\n"


def _shard_name(split_name: str, number: int) -> str:
    return f"{split_name}-{number:05d}.npy"


def _documents_name(split_name: str) -> str:
    return f"{split_name}-documents.npy"


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    """Make renames durable, where the system lets a folder be opened (Windows does not)."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- reading ---------------------------------------------------------------------------------------------------------


class TokenStream:
    """One split as one long row of ids, read from memory-mapped shards.

    `document_starts` (documents,) int64, increasing, the first 0; `bytes` the length of the texts in UTF-8.
    """

    def __init__(self, directory: Path, name: str, record: SplitRecord, dtype: np.dtype):
        self.name = name
        self.bytes = record.bytes
        self.document_starts = _map_npy(directory / _documents_name(name), DOCUMENT_DTYPE, record.documents)
        self._shards = [_map_npy(directory / shard.file, dtype, shard.tokens) for shard in record.shards]
        self._ends = list(accumulate(shard.tokens for shard in record.shards))
        self._tokens = record.tokens

    def __len__(self) -> int:
        """The number of tokens."""
        return self._tokens

    def read(self, start: int, count: int) -> np.ndarray:
        """Ids `start` to `start + count` (count,) int64, a copy, across shard borders.

        Raises UsageError where the stream does not have them all.
        """
        if start < 0 or count < 0 or start + count > len(self):
            raise UsageError(f"split {self.name!r} has {len(self):,} tokens, not {count:,} from {start:,} on")
        ids = np.empty(count, dtype=np.int64)
        filled = 0
        number = bisect_right(self._ends, start)
        while filled < count:
            offset = start + filled - (self._ends[number] - len(self._shards[number]))
            piece = self._shards[number][offset : offset + count - filled]
            ids[filled : filled + len(piece)] = piece
            filled += len(piece)
            number += 1
        return ids


class TokenStore:
    """A finished store: `TokenStore.open(folder, fingerprint)`, then `.split("train")`."""

    def __init__(
        self,
        directory: Path,
        fingerprint: str,
        vocab_size: int,
        splits: Mapping[str, SplitRecord],
        extra: Mapping[str, Any],
    ):
        self.directory = directory
        self.fingerprint = fingerprint
        self.vocab_size = vocab_size
        self.dtype = token_dtype(vocab_size)
        self.splits = splits
        self.extra = extra

    @classmethod
    def open(cls, directory: str | Path, fingerprint: str | None = None) -> Self:
        """Read the index and compare every file's header and length with it; file contents are not read.

        Raises DataError for a missing, unfinished or damaged store, and where `fingerprint` is given and is not that
        of the tokenizer the store was written with.
        """
        directory = Path(directory)
        index = _read_index(directory)
        if fingerprint is not None and fingerprint != index["tokenizer"]:
            raise DataError(
                f"{directory}: written with tokenizer {index['tokenizer'][:80]!r}, but {fingerprint[:80]!r} is given; "
                "give the tokenizer it was written with, or tokenize the texts again"
            )
        where = directory / INDEX
        splits = {name: _to_split_record(value, name, where) for name, value in index["splits"].items()}
        store = cls(directory, index["tokenizer"], index["vocab_size"], splits, index["extra"])
        for name, record in splits.items():
            _check_headers(directory, name, record, store.dtype)
        return store

    def split(self, name: str) -> TokenStream:
        """One split's tokens. Raises DataError for a name that the store does not have."""
        if name not in self.splits:
            known = ", ".join(self.splits) or "none"
            raise DataError(f"{self.directory}: no split {name!r} among {known}{did_you_mean(name, self.splits)}")
        return TokenStream(self.directory, name, self.splits[name], self.dtype)

    def verify(self) -> None:
        """Read every file: hashes, ids within the vocabulary, increasing document starts. Raises DataError."""
        for name, record in self.splits.items():
            _verify_hash(self.directory / _documents_name(name), record.documents_sha256)
            for shard in record.shards:
                _verify_hash(self.directory / shard.file, shard.sha256)
                _verify_ids(self.directory / shard.file, self.dtype, shard.tokens, self.vocab_size)
            starts = _map_npy(self.directory / _documents_name(name), DOCUMENT_DTYPE, record.documents)
            if not _are_starts(starts, record.tokens):
                raise _damaged(self.directory / _documents_name(name), "document starts that do not increase from 0")


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path}: {what}; the token store is damaged, write it again from the texts")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise _damaged(path, "this file is missing") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check who may read it") from error


def _read_index(directory: Path) -> dict[str, Any]:
    """The index with its own fields checked, its splits not yet."""
    path = directory / INDEX
    with _reading(path):
        if not path.is_file():
            raise DataError(f"{directory}: no token store here ({INDEX} is missing); write one, or give its folder")
        if path.stat().st_size > LARGEST_INDEX:
            raise _damaged(path, f"larger than {LARGEST_INDEX:,} bytes")
        content = path.read_bytes()
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
    """A split whose file names are the ones we give, so that none can lead out of the folder."""
    if not SPLIT_NAME.fullmatch(name):
        raise _damaged(path, f"a split called {name[:40]!r}")
    kinds = {"tokens": int, "documents": int, "bytes": int, "documents_sha256": str, "shards": list}
    split = _checked_record(value, kinds, path, f"split {name!r}")
    shards = []
    for number, entry in enumerate(split["shards"]):
        where = f"shard {number} of {name!r}"
        shard = ShardRecord(**_checked_record(entry, {"file": str, "tokens": int, "sha256": str}, path, where))
        if shard.file != _shard_name(name, number) or shard.tokens == 0:
            raise _damaged(path, f"{where} is {shard.file[:80]!r} with {shard.tokens} tokens")
        shards.append(shard)
    record = replace(SplitRecord(**split), shards=tuple(shards))
    if record.tokens != sum(shard.tokens for shard in shards) or record.documents > record.tokens:
        raise _damaged(path, f"split {name!r} and its shards disagree about their sizes")
    return record


def _checked_record(value: Any, kinds: Mapping[str, type], path: Path, what: str) -> dict[str, Any]:
    """A JSON object with exactly these fields of exactly these types, its numbers neither negative nor absurd."""
    if not isinstance(value, dict) or value.keys() != kinds.keys():
        raise _damaged(path, f"{what} does not have the fields {', '.join(kinds)}")
    for key, kind in kinds.items():
        if type(value[key]) is not kind or (kind is int and not 0 <= value[key] <= LARGEST_COUNT):
            raise _damaged(path, f"{what} has a {key!r} that makes no sense")
    return value


def _check_headers(directory: Path, name: str, record: SplitRecord, dtype: np.dtype) -> None:
    _check_header(directory / _documents_name(name), DOCUMENT_DTYPE, record.documents)
    for shard in record.shards:
        _check_header(directory / shard.file, dtype, shard.tokens)


def _check_header(path: Path, dtype: np.dtype, count: int) -> None:
    """Compare, not parse: the header's bytes are known in advance, so that nothing it says has to be believed."""
    with _reading(path):
        size = path.stat().st_size
        expected = HEADER_BYTES + count * dtype.itemsize
        if size != expected:
            raise _damaged(path, f"{size:,} bytes where the index says {expected:,}")
        with path.open("rb") as file:
            if file.read(HEADER_BYTES) != _npy_header(dtype, count):
                raise _damaged(path, f"not the header of {count:,} values of type {dtype.name}")


def _map_npy(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """(count,) memory-mapped, read-only; checked first, for reading a mapping past the file's end kills a process."""
    _check_header(path, dtype, count)
    with _reading(path):
        return np.memmap(path, dtype=dtype, mode="r", offset=HEADER_BYTES, shape=(count,))


def _verify_hash(path: Path, expected: str) -> None:
    with _reading(path):
        if _sha256(path) != expected:
            raise _damaged(path, "not the content that was written (its SHA-256 differs)")


def _verify_ids(path: Path, dtype: np.dtype, count: int, vocab_size: int) -> None:
    if (largest := int(_map_npy(path, dtype, count).max())) >= vocab_size:
        raise _damaged(path, f"token id {largest} outside the vocabulary of {vocab_size:,}")


def _are_starts(starts: np.ndarray, tokens: int) -> bool:
    if len(starts) == 0:
        return tokens == 0
    return starts[0] == 0 and starts[-1] < tokens and bool(np.all(starts[1:] > starts[:-1]))

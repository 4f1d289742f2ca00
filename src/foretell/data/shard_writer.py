"""Writing of token stores (format in `shards`). Files get their names only when complete; the index is last."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from foretell.data import shards
from foretell.errors import DataError, OutputError, UsageError
from foretell.storage.files import sha256, sync, write_json


class TokenWriter:
    """Writes one split; its files get their names if the `with` block succeeds, and are removed if it fails.

        with TokenWriter(folder, "train", vocab_size) as writer:
            writer.add_document(ids, text_bytes)
        write_index(folder, fingerprint, vocab_size, {"train": writer.record})

    Needs 8 bytes of memory per document, and one piece of a document. Raises UsageError for an invalid name or size,
    and OutputError if the folder already has a store or cannot be written (disk full, no permission).
    """

    def __init__(self, directory: str | Path, split_name: str, vocab_size: int, shard_tokens: int = 2**26):
        if not shards.SPLIT_NAME.fullmatch(split_name):
            raise UsageError(f"split name {split_name!r}: use small letters, digits and _, a letter first")
        if not 1 <= vocab_size <= 2**32 or shard_tokens < 1:
            raise UsageError(f"vocab_size {vocab_size}, shard_tokens {shard_tokens}: give 1 to 2**32, and 1 or more")
        self.directory = Path(directory)
        self.split_name = split_name
        self.vocab_size = vocab_size
        self.shard_tokens = shard_tokens
        self.dtype = shards.token_dtype(vocab_size)
        self._starts = array("q")
        self._tokens = 0
        self._text_bytes = 0
        self._shards: list[shards.ShardRecord] = []
        self._file: BinaryIO | None = None
        self._file_tokens = 0
        self._record: shards.SplitRecord | None = None
        with _writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            if (self.directory / shards.INDEX).exists():
                raise OutputError(f"{self.directory}: already holds a token store; remove it or choose another folder")

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
    def record(self) -> shards.SplitRecord:
        """The record for `write_index`, available after the `with` block."""
        if self._record is None:
            raise UsageError(f"split {self.split_name!r} is not written yet: its record exists after the with block")
        return self._record

    def add_document(self, ids: np.ndarray, text_bytes: int) -> None:
        """Append a document. ids: (tokens,) of any integer type; text_bytes: the length of its text in UTF-8.

        A document without ids only adds its bytes to the count, so that starts always increase.
        Raises DataError for an id outside the vocabulary.
        """
        self.add_pieces([ids], text_bytes)

    def add_bytes(self, text_bytes: int) -> None:
        """Count bytes of text whose ids were added with 0 bytes, if only the total is known."""
        self._text_bytes += text_bytes

    def add_pieces(self, pieces: Iterable[np.ndarray], text_bytes: int) -> None:
        """Like `add_document`, for ids that arrive in pieces; each is written immediately."""
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
            # Closing flushes the buffer, which fails again on a full disk; the bytes are not needed.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        begun = [shards.shard_name(self.split_name, index) for index in range(len(self._shards) + 1)]
        for name in (*begun, shards.documents_name(self.split_name)):
            _temporary(self.directory / name).unlink(missing_ok=True)

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        ids = np.asarray(ids)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise UsageError(f"ids of shape {ids.shape} and type {ids.dtype}: give a row of integers")
        # Checked before the cast, which would silently turn 65,536 into 0
        if ids.size and not 0 <= (worst := ids.min() if ids.min() < 0 else ids.max()) < self.vocab_size:
            raise DataError(
                f"{self.directory}: token id {worst} in document {len(self._starts)} of {self.split_name!r} is outside "
                f"the vocabulary of {self.vocab_size:,}; use the tokenizer that this vocabulary size belongs to"
            )
        return ids.astype(self.dtype)

    def _append(self, ids: np.ndarray) -> int:
        """Write the ids that fit into the current shard, and return their number."""
        path = _temporary(self.directory / shards.shard_name(self.split_name, len(self._shards)))
        with _writing(path):
            if self._file is None:
                self._file = path.open("wb")
                self._file.write(shards.npy_header(self.dtype, 0))
            count = min(len(ids), self.shard_tokens - self._file_tokens)
            self._file.write(ids[:count].data)
        self._file_tokens += count
        if self._file_tokens == self.shard_tokens:
            self._finish_shard()
        return count

    def _finish_shard(self) -> None:
        name = shards.shard_name(self.split_name, len(self._shards))
        path = _temporary(self.directory / name)
        assert self._file is not None
        with _writing(path):
            self._file.seek(0)
            self._file.write(shards.npy_header(self.dtype, self._file_tokens))
            self._file.close()
            sync(path)
            self._shards.append(shards.ShardRecord(name, self._file_tokens, sha256(path)))
        self._file, self._file_tokens = None, 0

    def _finish(self) -> None:
        if self._file is not None:
            self._finish_shard()
        name = shards.documents_name(self.split_name)
        path = _temporary(self.directory / name)
        with _writing(path):
            starts = np.array(self._starts, dtype=shards.DOCUMENT_DTYPE)
            path.write_bytes(shards.npy_header(shards.DOCUMENT_DTYPE, len(starts)) + starts.tobytes())
            sync(path)
        with _writing(self.directory):
            digest = sha256(path)
            for finished in (*(shard.file for shard in self._shards), name):
                _temporary(self.directory / finished).replace(self.directory / finished)
            sync(self.directory)
        self._record = shards.SplitRecord(
            self._tokens, len(self._starts), self._text_bytes, digest, tuple(self._shards)
        )


def write_index(
    directory: str | Path,
    tokenizer_fingerprint: str,
    vocab_size: int,
    splits: Mapping[str, shards.SplitRecord],
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Complete a store of written splits by writing its index atomically.

    extra: any JSON for readers of the store. Raises OutputError.
    """
    path = Path(directory) / shards.INDEX
    index = {
        "format": shards.FORMAT,
        "tokenizer": tokenizer_fingerprint,
        "vocab_size": vocab_size,
        "dtype": shards.token_dtype(vocab_size).name,
        "splits": {name: asdict(record) for name, record in splits.items()},
        "extra": dict(extra or {}),
    }
    write_json(path, index)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror}); make room or choose another folder"
        ) from error


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".partial")

"""Reading token ids: memory-mapped, checked before they are used (`shard_format` says how a store looks)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretell.data.shard_check import (
    are_starts,
    check_headers,
    damaged,
    map_npy,
    read_index,
    to_split_record,
    verify_hash,
    verify_ids,
)
from foretell.data.shard_format import DOCUMENT_DTYPE, INDEX, SplitRecord, documents_name, token_dtype
from foretell.errors import DataError, UsageError, did_you_mean


class TokenStream:
    """One split as one long row of ids, read from memory-mapped shards.

    `document_starts` (documents,) int64, increasing, the first 0; `bytes` the length of the texts in UTF-8.
    """

    def __init__(self, directory: Path, name: str, record: SplitRecord, dtype: np.dtype):
        self.name = name
        self.bytes = record.bytes
        self.document_starts = map_npy(directory / documents_name(name), DOCUMENT_DTYPE, record.documents)
        self._shards = [map_npy(directory / shard.file, dtype, shard.tokens) for shard in record.shards]
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
        index = read_index(directory)
        if fingerprint is not None and fingerprint != index["tokenizer"]:
            raise DataError(
                f"{directory}: written with tokenizer {index['tokenizer'][:80]!r}, but {fingerprint[:80]!r} is given; "
                "give the tokenizer it was written with, or tokenize the texts again"
            )
        where = directory / INDEX
        splits = {name: to_split_record(value, name, where) for name, value in index["splits"].items()}
        store = cls(directory, index["tokenizer"], index["vocab_size"], splits, index["extra"])
        for name, record in splits.items():
            check_headers(directory, name, record, store.dtype)
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
            verify_hash(self.directory / documents_name(name), record.documents_sha256)
            for shard in record.shards:
                verify_hash(self.directory / shard.file, shard.sha256)
                verify_ids(self.directory / shard.file, self.dtype, shard.tokens, self.vocab_size)
            starts = map_npy(self.directory / documents_name(name), DOCUMENT_DTYPE, record.documents)
            if not are_starts(starts, record.tokens):
                raise damaged(self.directory / documents_name(name), "document starts that do not increase from 0")

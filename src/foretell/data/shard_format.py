"""Token ids on disk: written once, memory-mapped, checked before they are used.

A store is a folder with, for every split NAME (`train`, `validation`),

    NAME-00000.npy ...     the token ids of its documents one after the other, uint16 or uint32, cut into shards
    NAME-documents.npy     int64, where each document starts in that stream
    index.json             what there should be, with the tokenizer's fingerprint; written last

The `.npy` files are what `numpy.save` writes, with a header of 128 bytes. A store without an index is unfinished, so a
writer that is killed at any moment leaves nothing that opens.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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


def npy_header(dtype: np.dtype, count: int) -> bytes:
    """128 bytes whatever the count, so that it can be filled in at the end (format version 1.0 of `.npy`)."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
    return start + text.ljust(HEADER_BYTES - len(start) - 1).encode("ascii") + b"\n"


def shard_name(split_name: str, number: int) -> str:
    return f"{split_name}-{number:05d}.npy"


def documents_name(split_name: str) -> str:
    return f"{split_name}-documents.npy"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

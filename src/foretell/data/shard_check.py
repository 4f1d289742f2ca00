"""Whether a token store is what its index says; nothing in it is believed before it is checked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from foretell.data.shard_format import (
    DOCUMENT_DTYPE,
    FORMAT,
    HEADER_BYTES,
    INDEX,
    LARGEST_COUNT,
    LARGEST_INDEX,
    SPLIT_NAME,
    ShardRecord,
    SplitRecord,
    documents_name,
    npy_header,
    sha256,
    shard_name,
    token_dtype,
)
from foretell.errors import DataError


def damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path}: {what}; the token store is damaged, write it again from the texts")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise damaged(path, "this file is missing") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check who may read it") from error


def read_index(directory: Path) -> dict[str, Any]:
    """The index with its own fields checked, its splits not yet."""
    path = directory / INDEX
    with _reading(path):
        if not path.is_file():
            raise DataError(f"{directory}: no token store here ({INDEX} is missing); write one, or give its folder")
        if path.stat().st_size > LARGEST_INDEX:
            raise damaged(path, f"larger than {LARGEST_INDEX:,} bytes")
        content = path.read_bytes()
    try:
        index = json.loads(content)
    except (ValueError, RecursionError):
        raise damaged(path, "not JSON") from None
    if isinstance(index, dict) and index.get("format", FORMAT) != FORMAT:
        shown = repr(index["format"])[:20]
        raise DataError(
            f"{path}: format {shown}, and this version reads {FORMAT}; write the store again from the texts"
        )
    kinds = {"format": int, "tokenizer": str, "vocab_size": int, "dtype": str, "splits": dict, "extra": dict}
    index = _checked_record(index, kinds, path, "the index")
    if not 1 <= index["vocab_size"] <= 2**32 or index["dtype"] != token_dtype(index["vocab_size"]).name:
        raise damaged(path, f"vocabulary {index['vocab_size']} and type {index['dtype'][:20]!r} do not agree")
    return index


def to_split_record(value: Any, name: str, path: Path) -> SplitRecord:
    """A split whose file names are the ones we give, so that none can lead out of the folder."""
    if not SPLIT_NAME.fullmatch(name):
        raise damaged(path, f"a split called {name[:40]!r}")
    kinds = {"tokens": int, "documents": int, "bytes": int, "documents_sha256": str, "shards": list}
    split = _checked_record(value, kinds, path, f"split {name!r}")
    shards = []
    for number, entry in enumerate(split["shards"]):
        where = f"shard {number} of {name!r}"
        shard = ShardRecord(**_checked_record(entry, {"file": str, "tokens": int, "sha256": str}, path, where))
        if shard.file != shard_name(name, number) or shard.tokens == 0:
            raise damaged(path, f"{where} is {shard.file[:80]!r} with {shard.tokens} tokens")
        shards.append(shard)
    record = replace(SplitRecord(**split), shards=tuple(shards))
    if record.tokens != sum(shard.tokens for shard in shards) or record.documents > record.tokens:
        raise damaged(path, f"split {name!r} and its shards disagree about their sizes")
    return record


def _checked_record(value: Any, kinds: Mapping[str, type], path: Path, what: str) -> dict[str, Any]:
    """A JSON object with exactly these fields of exactly these types, its numbers neither negative nor absurd."""
    if not isinstance(value, dict) or value.keys() != kinds.keys():
        raise damaged(path, f"{what} does not have the fields {', '.join(kinds)}")
    for key, kind in kinds.items():
        if type(value[key]) is not kind or (kind is int and not 0 <= value[key] <= LARGEST_COUNT):
            raise damaged(path, f"{what} has a {key!r} that makes no sense")
    return value


def check_headers(directory: Path, name: str, record: SplitRecord, dtype: np.dtype) -> None:
    _check_header(directory / documents_name(name), DOCUMENT_DTYPE, record.documents)
    for shard in record.shards:
        _check_header(directory / shard.file, dtype, shard.tokens)


def _check_header(path: Path, dtype: np.dtype, count: int) -> None:
    """Compare, not parse: the header's bytes are known in advance, so that nothing it says has to be believed."""
    with _reading(path):
        size = path.stat().st_size
        expected = HEADER_BYTES + count * dtype.itemsize
        if size != expected:
            raise damaged(path, f"{size:,} bytes where the index says {expected:,}")
        with path.open("rb") as file:
            if file.read(HEADER_BYTES) != npy_header(dtype, count):
                raise damaged(path, f"not the header of {count:,} values of type {dtype.name}")


def map_npy(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """(count,) memory-mapped, read-only; checked first, for reading a mapping past the file's end kills a process."""
    _check_header(path, dtype, count)
    with _reading(path):
        return np.memmap(path, dtype=dtype, mode="r", offset=HEADER_BYTES, shape=(count,))


def verify_hash(path: Path, expected: str) -> None:
    with _reading(path):
        if sha256(path) != expected:
            raise damaged(path, "not the content that was written (its SHA-256 differs)")


def verify_ids(path: Path, dtype: np.dtype, count: int, vocab_size: int) -> None:
    if (largest := int(map_npy(path, dtype, count).max())) >= vocab_size:
        raise damaged(path, f"token id {largest} outside the vocabulary of {vocab_size:,}")


def are_starts(starts: np.ndarray, tokens: int) -> bool:
    if len(starts) == 0:
        return tokens == 0
    return starts[0] == 0 and starts[-1] < tokens and bool(np.all(starts[1:] > starts[:-1]))

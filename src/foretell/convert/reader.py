"""Read safetensors files of any origin: nothing of the header is believed before it has been checked.

The format: eight bytes with the header's length, the header (a JSON object: name to dtype, shape and byte range), data.
Weights stay memory-mapped where no cast is needed; a cast goes through a small part of the file at a time, so that
never much more is in memory than what comes out.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from foretell.errors import CheckpointError

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 2**20  # some 100 a tensor: ten times what the largest Llama has, and read in half a second
MOST_DIMENSIONS = 8
MAPPED_AT_A_TIME = 2**24  # bytes
# name in the header -> bytes of an element; only FLOATS can be weights
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8}
SIZES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F16": 2, "BF16": 2, "F32": 4, "F64": 8}
FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: `start` counts bytes from the beginning of the file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """The byte after the last."""
        return self.start + self.count * SIZES[self.dtype]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a file. A header that is not exactly right for the file is a `CheckpointError`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, MOST_HEADER_BYTES):
                refuse(path, f"its header would have {length} bytes, and the file has {size}")
            header = file.read(length)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        refuse(path, error.strerror or str(error))
    entries = parse_header(path, header)
    begin = LENGTH_BYTES + length
    tensors = {name: read_entry(path, name, entry, begin) for name, entry in entries.items()}
    check_ranges(path, tensors.values(), begin, size)
    return tensors


def parse_header(path: Path, header: bytes) -> dict[str, Any]:
    """The header's JSON without its metadata."""
    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=refuse_duplicates)
    except (ValueError, RecursionError) as error:
        refuse(path, f"its header is no JSON: {error}")
    if not isinstance(entries, dict):
        refuse(path, "its header is no JSON object")
    entries.pop("__metadata__", None)
    return entries


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise ValueError where a JSON object has the same key twice."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name appears twice")
    return values


def read_entry(path: Path, name: str, entry: Any, begin: int) -> StoredTensor:
    """One tensor; `begin` is where the data begin."""
    if not isinstance(entry, dict):
        refuse(path, f"'{name[:80]}' is no tensor")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in SIZES:
        refuse(path, f"'{name[:80]}' has the unknown dtype {str(dtype)[:40]!r}")
    shape, offsets = read_counts(path, name, entry, "shape"), read_counts(path, name, entry, "data_offsets")
    expected = math.prod(shape) * SIZES[dtype]
    if len(offsets) != 2 or offsets[1] - offsets[0] != expected:
        refuse(path, f"'{name[:80]}' has data_offsets {offsets}, and {dtype} of shape {shape} takes {expected} bytes")
    return StoredTensor(path, name, dtype, tuple(shape), begin + offsets[0])


def read_counts(path: Path, name: str, entry: dict[str, Any], key: str) -> list[int]:
    """A short list of whole numbers from 0 that a file's size can count."""
    value = entry.get(key)
    is_short = isinstance(value, list) and len(value) <= MOST_DIMENSIONS
    if not is_short or not all(type(one) is int and 0 <= one < 2**63 for one in value):
        refuse(path, f"'{name[:80]}' has the {key} {str(value)[:40]}")
    return value


def check_ranges(path: Path, tensors: Iterable[StoredTensor], begin: int, size: int) -> None:
    """Refuse ranges that overlap, leave gaps or do not end where the file does."""
    last, before = begin, "the header"
    for tensor in sorted(tensors, key=lambda one: (one.start, one.end)):
        if tensor.start != last:
            found = "overlaps" if tensor.start < last else "leaves a gap after"
            refuse(path, f"'{tensor.name[:80]}' {found} '{before[:80]}'")
        last, before = tensor.end, tensor.name
    if last != size:
        refuse(path, f"its tensors end at byte {last}, and the file has {size}: it may be cut short")


def refuse(path: Path, reason: str) -> NoReturn:
    """One line for whatever is wrong with a file."""
    raise CheckpointError(f"{path} is damaged or no safetensors file: {' '.join(reason.split())[:200]}")


def read_tensor(stored: StoredTensor, dtype: torch.dtype) -> Tensor:
    """The tensor in this dtype: memory-mapped where the file has the same, else cast part by part."""
    if stored.dtype not in FLOATS:
        raise CheckpointError(f"{stored.file}: '{stored.name}' holds {stored.dtype}, which is no floating-point weight")
    if FLOATS[stored.dtype] == dtype:
        return map_elements(stored, 0, stored.count).view(stored.shape)
    result = new_elements(stored.count, dtype)
    step = MAPPED_AT_A_TIME // SIZES[stored.dtype]
    for first in range(0, stored.count, step):
        count = min(step, stored.count - first)
        result[first : first + count] = map_elements(stored, first, count)
    return result.view(stored.shape)


def new_elements(count: int, dtype: torch.dtype) -> Tensor:
    """Room for so many elements, which goes back to the system at once when it is no longer needed.

    C's allocator would keep the holes that one matrix after another leaves: GPT-2 in bfloat16 took 1.6 times its size.
    """
    if count == 0:
        return torch.empty(0, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, access=mmap.ACCESS_COPY)
    return torch.frombuffer(memory, dtype=dtype)


def map_elements(stored: StoredTensor, first: int, count: int) -> Tensor:
    """Some elements as they lie in the file, memory-mapped for as long as the tensor lives; writing changes no file."""
    if count == 0:
        return torch.empty(0, dtype=FLOATS[stored.dtype])
    size = SIZES[stored.dtype]
    start = stored.start + first * size
    page = start - start % mmap.ALLOCATIONGRANULARITY
    try:
        with stored.file.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), start - page + count * size, access=mmap.ACCESS_COPY, offset=page)
    except (OSError, ValueError) as error:  # the file has changed since its header was read
        raise CheckpointError(f"{stored.file} cannot be read: {error}") from None
    if start % size:  # old writers did not align the data; processors want it so
        return torch.frombuffer(bytearray(mapped[start - page :]), dtype=FLOATS[stored.dtype])
    return torch.frombuffer(mapped, dtype=FLOATS[stored.dtype], count=count, offset=start - page)

"""Read safetensors files from untrusted sources.

The `safetensors` library checks the header: its JSON, types and shapes, and that the byte ranges cover the file without
gaps or overlaps. This module adds limits on the header, refuses duplicate names, turns every error into one line, and
bounds memory: weights stay memory-mapped if no cast is needed; a cast maps a small part of the file at a time, so that
memory peaks slightly above the size of the result.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foretell.errors import CheckpointError

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 2**20  # about 100 per tensor: ten times the header of the largest Llama
MOST_DIMENSIONS = 8
MAPPED_AT_A_TIME = 2**24  # bytes
FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file whose header has been checked."""

    file: Path
    name: str
    dtype: str  # the format's name, such as F32; only FLOATS can be weights
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a file, by name. A header that does not match the file exactly is a `CheckpointError`."""
    check_header(path)
    with one_line_errors(path), safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        tensors = {name: StoredTensor(path, name, s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
    for tensor in tensors.values():
        if len(tensor.shape) > MOST_DIMENSIONS:
            refuse(path, f"'{tensor.name[:80]}' has {len(tensor.shape)} dimensions")
    return tensors


def check_header(path: Path) -> None:
    """Refuse a header that is too large, or that has a name twice, of which the library would take the last."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, MOST_HEADER_BYTES):
                refuse(path, f"its header would have {length} bytes, and the file has {size}")
            header = file.read(length)
        json.loads(header, object_pairs_hook=refuse_duplicates)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        refuse(path, error.strerror or str(error))
    except (ValueError, RecursionError) as error:
        refuse(path, f"its header is not JSON: {error}")


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise ValueError if a JSON object has the same key twice."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name appears twice")
    return values


@contextmanager
def one_line_errors(path: Path) -> Generator[None]:
    """Turn the library's errors into one line."""
    try:
        yield
    except (SafetensorError, OSError, RuntimeError) as error:
        refuse(path, str(error).removeprefix("Error while deserializing header: "))


def refuse(path: Path, reason: str) -> NoReturn:
    """Raise the one line for a damaged file."""
    raise CheckpointError(f"{path} is damaged, cut short or not a safetensors file: {' '.join(reason.split())[:200]}")


def read_tensor(stored: StoredTensor, dtype: torch.dtype) -> Tensor:
    """The tensor in this dtype: memory-mapped if the file has the same, else cast part by part.

    Writing into a mapped tensor does not change the file.
    """
    if stored.dtype not in FLOATS:
        raise CheckpointError(
            f"{stored.file}: '{stored.name}' holds {stored.dtype}, which is not a floating-point type"
        )
    if FLOATS[stored.dtype] == dtype:
        return read_part(stored, ...)
    result = new_tensor(stored.shape, dtype)
    for part in parts_of(stored):
        result[part] = read_part(stored, part)
    return result


def parts_of(stored: StoredTensor) -> list[Any]:
    """Indices that cut a tensor into parts of about MAPPED_AT_A_TIME bytes, along its first dimension."""
    if not stored.shape or not math.prod(stored.shape):
        return [...]
    row_bytes = math.prod(stored.shape[1:]) * FLOATS[stored.dtype].itemsize
    step = max(1, MAPPED_AT_A_TIME // row_bytes)
    return [slice(first, first + step) for first in range(0, stored.shape[0], step)]


def read_part(stored: StoredTensor, part: Any) -> Tensor:
    """A part of a tensor, memory-mapped.

    Each has its own mapping of the file, so that freeing it frees its pages: with one for all, GPT-2's transposed
    matrices took 1.7 times the size of the weights.
    """
    with one_line_errors(stored.file), safe_open(stored.file, framework="pt") as file:
        return aligned(file.get_slice(stored.name)[part])


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, copied if old writers put it where its elements are not aligned."""
    return tensor if tensor.data_ptr() % tensor.itemsize == 0 else tensor.clone()


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor whose memory returns to the system when it is freed.

    C's allocator would keep the holes that one matrix after another leaves: GPT-2 in bfloat16 took 1.6 times its size.
    """
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, access=mmap.ACCESS_COPY)
    return torch.frombuffer(memory, dtype=dtype).view(shape)

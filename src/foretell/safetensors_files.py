"""Tensors as safetensors files: read from untrusted sources, checked for values that are not finite, and written.

The `safetensors` library checks the header: its JSON, types and shapes, and that the byte ranges cover the file without
gaps or overlaps. This module adds limits on the header, refuses duplicate names, and turns every error into one line.

`read_tensor` copies weights and does not map the file: overwriting the file later cannot change a loaded model, and a
file that is cut short meanwhile is an error, where a mapping would end the process (SIGBUS). A cast reads a small part
at a time, so that memory peaks slightly above the size of the result.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foretell.errors import CheckpointError, OutputError
from foretell.files import open_regular

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 2**20  # about 100 per tensor: ten times the header of the largest Llama
MOST_OWN_HEADER_BYTES = 2**23  # of files written by foretell; optimizer state of 1,000 layers has about 5 million
ROWS_CHECKED = 8  # of each matrix, when a model is loaded for inference
MOST_DIMENSIONS = 8
READ_AT_A_TIME = 2**24  # bytes
OWN_PAGES = 2**20  # smallest size in bytes of a tensor with separate pages
INTEGERS = {torch.int8: "I8", torch.uint8: "U8", torch.int32: "I32"}
FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}

Stamp = tuple[int, int, int]  # inode, size and time of the last change


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file whose header has been checked."""

    file: Path
    name: str
    dtype: str  # the format's name, such as F32; only FLOATS can be weights
    shape: tuple[int, ...]
    start: int  # the offset of its first byte in the file
    stamp: Stamp  # of the file when its header was checked


def read_header(path: Path, limit: int = MOST_HEADER_BYTES) -> dict[str, StoredTensor]:
    """Every tensor of a file, by name. A header that does not match the file exactly is a `CheckpointError`."""
    header, data_start, stamp = check_header(path, limit)
    with one_line_errors(path), open_by_library(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        shapes = {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    tensors = {
        name: StoredTensor(path, name, dtype, shape, data_start + header[name]["data_offsets"][0], stamp)
        for name, (dtype, shape) in shapes.items()
    }
    for tensor in tensors.values():
        if len(tensor.shape) > MOST_DIMENSIONS:
            refuse(path, f"'{tensor.name[:80]}' has {len(tensor.shape)} dimensions")
    return tensors


def check_header(path: Path, limit: int = MOST_HEADER_BYTES) -> tuple[dict[str, Any], int, Stamp]:
    """The header, the offset of the data and the file's stamp.

    Refuses a header of more than `limit` bytes, and duplicate names, of which the library would take the last.
    """
    try:
        with open_regular(path) as file:
            stamp = stamp_of(file)
            size = stamp[1]
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, limit):
                refuse(path, f"its header would have {length} bytes, and the file has {size}")
            header = file.read(length)
        values = json.loads(header, object_pairs_hook=refuse_duplicates)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        refuse(path, error.strerror or str(error))
    except (ValueError, RecursionError) as error:
        refuse(path, f"its header is not JSON: {error}")
    return values, LENGTH_BYTES + length, stamp


def open_by_library(path: Path):
    """The library's object of a file; under the name of its descriptor, since the library takes only names in UTF-8."""
    with open_regular(path) as file:
        return safe_open(f"/dev/fd/{file.fileno()}", framework="pt")


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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
    raise CheckpointError(f"{path} is damaged, cut short or not a safetensors file: {' '.join(reason.split())[:200]}")


def stamp_of(file: BufferedReader) -> Stamp:
    """A value that changes when a file is replaced, cut short or written to."""
    status = os.fstat(file.fileno())
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_tensor(stored: StoredTensor, dtype: torch.dtype) -> Tensor:
    """A copy of the tensor in this dtype, cast part by part; integers have to be stored as such.

    A type that weights cannot have, and a file that changed since its header was checked, are a `CheckpointError`.
    """
    if dtype in INTEGERS and stored.dtype != INTEGERS[dtype]:
        raise CheckpointError(f"{stored.file}: '{stored.name}' holds {stored.dtype}, and {INTEGERS[dtype]} is expected")
    if dtype not in INTEGERS and stored.dtype not in FLOATS:
        raise CheckpointError(
            f"{stored.file}: '{stored.name}' holds {stored.dtype}, which is not a floating-point type"
        )
    result = new_tensor(stored.shape, dtype)
    try:
        with open_regular(stored.file) as file:
            file.seek(stored.start)
            is_whole = read_values(file, FLOATS.get(stored.dtype, dtype), result.view(-1))
            is_same = stamp_of(file) == stored.stamp
    except OSError as error:
        raise CheckpointError(f"{stored.file} cannot be read: {error.strerror or error}") from None
    if not (is_whole and is_same):
        raise CheckpointError(f"{stored.file} changed while it was read; wait until it is written, and load it again")
    return result


def read_values(file: BufferedReader, dtype: torch.dtype, target: Tensor) -> bool:
    """Fill `target` (N,) with values stored in `dtype`; False if the file ends before."""
    step = max(1, READ_AT_A_TIME // dtype.itemsize)
    for part in target.split(step) if len(target) else ():
        values = part if part.dtype == dtype else new_tensor(tuple(part.shape), dtype)
        data = values.view(torch.uint8).numpy().data
        if file.readinto(data) != len(data):
            return False
        if values is not part:
            part.copy_(values)
    return True


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor; the memory of a large one returns to the system when it is freed.

    C's allocator would keep the holes that one matrix after another leaves: GPT-2 in bfloat16 took 1.6 times its size.
    """
    count = math.prod(shape)
    if count * dtype.itemsize < OWN_PAGES:
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, access=mmap.ACCESS_COPY)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors; a full disk or a missing permission is an `OutputError`."""
    try:
        path.touch()
        mode = path.stat().st_mode
        save_file(tensors, path, metadata=metadata)
        path.chmod(mode)  # the library lets only the owner read it
    except (OSError, SafetensorError) as error:
        raise OutputError(f"could not write {path}: {error}") from error


def open_tensors(path: Path):
    """Open a safetensors file, memory-mapped; any other file under that name is a `CheckpointError`."""
    check_header(path, MOST_OWN_HEADER_BYTES)
    with one_line_errors(path):
        return open_by_library(path)


def check_shapes(stored: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Refuse weights of which one is missing or has another shape than expected."""
    for name, shape in expected.items():
        if name not in stored:
            raise CheckpointError(f"{where} has no weight '{name}'")
        if stored[name].shape != shape:
            raise CheckpointError(
                f"{where}: '{name}' has shape {stored[name].shape}, the configuration asks for {shape}"
            )


def check_finite(weights: Mapping[str, Tensor], path: Path, *, rows: int | None = ROWS_CHECKED) -> None:
    """Refuse weights with NaN or infinity: vectors as a whole, of matrices `rows` rows spread evenly (None: all).

    A few rows show a model that diverged and leave the others unread on the disk. Other values that are not finite
    reach the logits, which are checked before each use.
    """
    for name, weight in weights.items():
        part = weight if rows is None or weight.dim() < 2 else weight[:: max(1, len(weight) // rows)]
        if not bool(part.sum().isfinite()) and not bool(part.isfinite().all()):  # finite values may overflow a sum
            raise CheckpointError(
                f"{path}: '{name}' has values that are not finite (NaN or infinity); the model is damaged"
            )

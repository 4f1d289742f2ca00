"""The header of a safetensors file: names, types and shapes of its tensors, without torch and NumPy.

The header is checked as the `safetensors` library checks it: its JSON, types and shapes, and that the byte ranges cover
the file without gaps or overlaps. The library imports NumPy for that, a tenth of the time of `foretell info`. In
addition, the header's size is limited and duplicate names are refused. Every error is one line.

Source: the format's description, https://github.com/huggingface/safetensors, version 0.8.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from foretell.errors import CheckpointError
from foretell.storage.files import open_regular

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 2**20  # ten times the header of the largest Llama, which has about 100 bytes per tensor
MOST_OWN_HEADER_BYTES = 2**23  # for files of foretell; optimizer state of 1,000 layers has about 5 million
MOST_DIMENSIONS = 8
DTYPE_BITS = {
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
METADATA = "__metadata__"
FLOAT_NAMES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}

Stamp = tuple[int, int, int]  # inode, size and time of the last change


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file whose header has been checked."""

    file: Path
    name: str
    dtype: str  # the format's name, such as F32
    shape: tuple[int, ...]
    start: int  # the offset of its first byte in the file
    end: int  # the offset after its last byte
    stamp: Stamp  # the file's stamp when its header was checked

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def float_name(self) -> str:
        """`float32` for F32; a type that weights cannot have is a `CheckpointError`."""
        if self.dtype not in FLOAT_NAMES:
            raise CheckpointError(f"{self.file}: '{self.name}' holds {self.dtype}, which is not a floating-point type")
        return FLOAT_NAMES[self.dtype]


def read_header(path: Path, limit: int = MOST_HEADER_BYTES) -> dict[str, StoredTensor]:
    """Every tensor of a file, by name. Raises `CheckpointError` if the header does not match the file exactly."""
    header, data_start, stamp = check_header(path, limit)
    metadata = header.pop(METADATA, None)
    is_map = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if metadata is not None and not is_map:
        refuse(path, f"{METADATA} does not map names to texts")
    tensors = {name: stored_tensor(path, name, entry, data_start, stamp) for name, entry in header.items()}
    end = data_start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != end:
            begins, before = tensor.start - data_start, end - data_start
            refuse(path, f"'{tensor.name[:80]}' begins at byte {begins} of the data, the one before ends at {before}")
        end = tensor.end
    if end != stamp[1]:
        refuse(path, f"its tensors end at byte {end}, and the file has {stamp[1]}")
    return tensors


def stored_tensor(path: Path, name: str, entry: Any, data_start: int, stamp: Stamp) -> StoredTensor:
    where = f"'{name[:80]}'"
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, end]}:
            numbers = (*shape, start, end)
        case _:
            refuse(path, f"{where} has no dtype, shape and data_offsets of two numbers")
    if dtype not in DTYPE_BITS:
        refuse(path, f"{where} has the unknown dtype '{dtype[:20]}'")
    if not all(type(number) is int and number >= 0 for number in numbers):
        refuse(path, f"the shape and data_offsets of {where} are not whole numbers from 0 on")
    if len(shape) > MOST_DIMENSIONS:
        refuse(path, f"{where} has {len(shape)} dimensions")
    if math.prod(shape) * DTYPE_BITS[dtype] != 8 * (end - start):
        refuse(path, f"{where} has {end - start} bytes, which do not fit its shape in {dtype}")
    return StoredTensor(path, name, dtype, tuple(shape), data_start + start, data_start + end, stamp)


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
    if not isinstance(values, dict):
        refuse(path, "its header is not a JSON object")
    return values, LENGTH_BYTES + length, stamp


def check_shapes(stored: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Refuse weights if one is missing or has another shape than expected."""
    for name, shape in expected.items():
        if name not in stored:
            raise CheckpointError(f"{where} has no weight '{name}'")
        if stored[name].shape != shape:
            raise CheckpointError(
                f"{where}: '{name}' has shape {stored[name].shape}, the configuration asks for {shape}"
            )


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name appears twice")
    return values


def refuse(path: Path, reason: str) -> NoReturn:
    raise CheckpointError(f"{path} is damaged, cut short or not a safetensors file: {' '.join(reason.split())[:200]}")


def stamp_of(file: BufferedReader) -> Stamp:
    """A value that changes when a file is replaced, cut short or written to."""
    status = os.fstat(file.fileno())
    return status.st_ino, status.st_size, status.st_mtime_ns

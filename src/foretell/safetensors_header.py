"""The header of a safetensors file: names, types and shapes of its tensors, without torch.

The `safetensors` library checks the header: its JSON, types and shapes, and that the byte ranges cover the file without
gaps or overlaps. This module adds limits on the header, refuses duplicate names, and turns every error into one line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, NoReturn

from safetensors import SafetensorError, safe_open

from foretell.errors import CheckpointError
from foretell.files import open_regular

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 2**20  # about 100 per tensor: ten times the header of the largest Llama
MOST_OWN_HEADER_BYTES = 2**23  # of files written by foretell; optimizer state of 1,000 layers has about 5 million
MOST_DIMENSIONS = 8
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
    end: int  # the offset behind its last byte
    stamp: Stamp  # of the file when its header was checked

    @property
    def size(self) -> int:
        """Its bytes in the file."""
        return self.end - self.start

    @property
    def float_name(self) -> str:
        """`float32` for F32; a type that weights cannot have is a `CheckpointError`."""
        if self.dtype not in FLOAT_NAMES:
            raise CheckpointError(f"{self.file}: '{self.name}' holds {self.dtype}, which is not a floating-point type")
        return FLOAT_NAMES[self.dtype]


def read_header(path: Path, limit: int = MOST_HEADER_BYTES) -> dict[str, StoredTensor]:
    """Every tensor of a file, by name. A header that does not match the file exactly is a `CheckpointError`."""
    header, data_start, stamp = check_header(path, limit)
    with one_line_errors(path), open_by_library(path, "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        shapes = {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    tensors = {}
    for name, (dtype, shape) in shapes.items():
        start, end = header[name]["data_offsets"]
        tensors[name] = StoredTensor(path, name, dtype, shape, data_start + start, data_start + end, stamp)
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


def check_shapes(stored: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Refuse weights of which one is missing or has another shape than expected."""
    for name, shape in expected.items():
        if name not in stored:
            raise CheckpointError(f"{where} has no weight '{name}'")
        if stored[name].shape != shape:
            raise CheckpointError(
                f"{where}: '{name}' has shape {stored[name].shape}, the configuration asks for {shape}"
            )


def open_by_library(path: Path, framework: Literal["np", "pt"]):
    """The library's object of a file; under the name of its descriptor, since the library takes only names in UTF-8."""
    with open_regular(path) as file:
        return safe_open(f"/dev/fd/{file.fileno()}", framework=framework)


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

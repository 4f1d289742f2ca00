"""The header of a GGUF file: its key-value pairs and the table of its tensors, without torch and NumPy.

The file is untrusted. A count or length is compared with the bytes that are left before anything is made from it, and
the tensors must follow each other to the end of the data, as in llama.cpp. Every error is one line.

Source: the format's description, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from foretell.errors import CheckpointError
from foretell.storage.files import GGUF_MAGIC, open_regular, printable_name
from foretell.storage.safetensors_header import Stamp, StoredTensor, stamp_of

VERSIONS = (2, 3)
MAX_HEADER_BYTES = 2**25  # five times Gemma's, whose vocabulary of 262,144 tokens is the largest of a known family
GENERAL, GENERAL_BYTES = "general.", 2**16  # the pairs that come first, and a bound of their bytes
MAX_DIMENSIONS, MAX_ALIGNMENT = 4, 2**16
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # for `struct`
STRING, ARRAY = 8, 9
SMALLEST_PAIR, SMALLEST_TENSOR = 13, 32  # bytes
ALIGNMENT, ARCHITECTURE = "general.alignment", "general.architecture"
CUT_SHORT = "it ends within its header"


@dataclass(frozen=True)
class TensorType:
    """A type of tensor: a block of `weights` inputs of a row takes `size` bytes."""

    number: int
    name: str
    weights: int
    size: int


TENSOR_TYPES = (
    TensorType(0, "F32", 1, 4),
    TensorType(1, "F16", 1, 2),
    TensorType(2, "Q4_0", 32, 18),
    TensorType(3, "Q4_1", 32, 20),
    TensorType(6, "Q5_0", 32, 22),
    TensorType(7, "Q5_1", 32, 24),
    TensorType(8, "Q8_0", 32, 34),
    TensorType(12, "Q4_K", 256, 144),
    TensorType(13, "Q5_K", 256, 176),
    TensorType(14, "Q6_K", 256, 210),
    TensorType(30, "BF16", 1, 2),
)
TYPE_OF_NUMBER = {kind.number: kind for kind in TENSOR_TYPES}
TYPE_OF_NAME = {kind.name: kind for kind in TENSOR_TYPES}


@dataclass(frozen=True)
class GGUFHeader:
    """A checked header. tensors: by name, with shapes in our order, the inputs last."""

    pairs: dict[str, Any]
    tensors: dict[str, StoredTensor]


class Cursor:
    """A position in the bytes of a header. A value that the bytes do not hold is a ValueError."""

    def __init__(self, data: bytes):
        self.data, self.position = data, 0

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def advance(self, size: int) -> int:
        """Move behind `size` bytes; returns the position of the first."""
        if size > self.left:
            raise ValueError(CUT_SHORT)
        start, self.position = self.position, self.position + size
        return start

    def number(self, code: str) -> Any:
        return struct.unpack_from(f"<{code}", self.data, self.advance(struct.calcsize(f"<{code}")))[0]

    def count(self, smallest: int, what: str) -> int:
        """A number of items of at least `smallest` bytes each."""
        count = self.number("Q")
        if count > self.left // smallest:
            raise ValueError(f"it would have {count:,} {what}")
        return count

    def text(self) -> str:
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        data, texts, end = self.data, [], self.position
        for _ in range(count):
            start = end + 8
            end = start + int.from_bytes(data[end:start], "little")
            texts.append(str(data[start:end], "utf-8"))
            if end > len(data):
                raise ValueError(CUT_SHORT)
        self.position = end
        return texts

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array(self.number("I"))
        if kind not in SCALARS:
            raise ValueError(f"a value has the unknown type {kind}")
        return self.number(SCALARS[kind])

    def array(self, kind: int) -> list[Any]:
        if kind == STRING:
            return self.texts(self.count(8, "texts in an array"))
        if kind not in SCALARS:
            raise ValueError(f"an array has values of the unknown type {kind}")
        count = self.count(struct.calcsize(f"<{SCALARS[kind]}"), "values in an array")
        code = f"<{count}{SCALARS[kind]}"
        return list(struct.unpack_from(code, self.data, self.advance(struct.calcsize(code))))


def read_header(path: Path) -> GGUFHeader:
    """The header of a file. Raises `CheckpointError` for anything but a whole file with tensors of known types."""
    data, stamp = read_start(path, MAX_HEADER_BYTES)
    cursor = Cursor(data)
    try:
        num_tensors, num_pairs = read_counts(cursor)
        pairs: dict[str, Any] = {}
        for name, value in iter_pairs(cursor, num_pairs):
            if name in pairs:
                raise ValueError(f"'{name[:80]}' appears twice")
            pairs[name] = value
        return GGUFHeader(pairs, read_tensors(path, cursor, num_tensors, pairs.get(ALIGNMENT, 32), stamp))
    except ValueError as error:
        refuse(path, str(error))


def read_general(path: Path) -> dict[str, Any]:
    """The pairs at the beginning of a file that describe the model, such as its architecture."""
    data, _ = read_start(path, GENERAL_BYTES)
    cursor = Cursor(data)
    try:
        _, num_pairs = read_counts(cursor)
        return dict(takewhile(lambda pair: pair[0].startswith(GENERAL), iter_pairs(cursor, num_pairs)))
    except ValueError as error:
        refuse(path, str(error))


def read_start(path: Path, size: int) -> tuple[bytes, Stamp]:
    """The first bytes of a file, and its stamp."""
    try:
        with open_regular(path) as file:
            return file.read(size), stamp_of(file)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None


def read_counts(cursor: Cursor) -> tuple[int, int]:
    """The numbers of tensors and of pairs."""
    start, version = cursor.advance(len(GGUF_MAGIC)), cursor.number("I")
    if cursor.data[start : start + len(GGUF_MAGIC)] != GGUF_MAGIC:
        raise ValueError("it does not begin with GGUF")
    if version not in VERSIONS:
        order = ", big-endian" if version in (swapped << 24 for swapped in VERSIONS) else ""
        raise ValueError(f"its version is {version}{order}; known: 2 and 3, little-endian")
    return cursor.count(SMALLEST_TENSOR, "tensors"), cursor.count(SMALLEST_PAIR, "pairs")


def iter_pairs(cursor: Cursor, count: int) -> Iterator[tuple[str, Any]]:
    for _ in range(count):
        yield cursor.text(), cursor.value(cursor.number("I"))


def read_tensors(path: Path, cursor: Cursor, count: int, alignment: Any, stamp: Stamp) -> dict[str, StoredTensor]:
    """The table of tensors. Each begins where the one before ends, rounded up to a multiple of the alignment."""
    if type(alignment) is not int or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"{ALIGNMENT} is {str(alignment)[:20]}, not a power of two from 8 on")
    entries = [read_entry(cursor) for _ in range(count)]
    data_start = cursor.position + -cursor.position % alignment
    tensors: dict[str, StoredTensor] = {}
    end = data_start
    for name, kind, shape, offset in entries:
        start = end + -(end - data_start) % alignment
        if data_start + offset != start:
            raise ValueError(f"'{name[:80]}' begins at byte {offset:,} of the data, not {start - data_start:,}")
        if name in tensors:
            raise ValueError(f"there are two tensors '{name[:80]}'")
        end = start + math.prod(shape) // kind.weights * kind.size
        tensors[name] = StoredTensor(path, name, kind.name, shape, start, end, stamp)
    if end > stamp[1]:
        raise ValueError(f"its tensors end at byte {end:,}, and the file has {stamp[1]:,}")
    return tensors


def read_entry(cursor: Cursor) -> tuple[str, TensorType, tuple[int, ...], int]:
    """Name, type, shape and offset of a tensor."""
    name, dimensions = cursor.text(), cursor.number("I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"'{name[:80]}' has {dimensions} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
    number, offset = cursor.number("I"), cursor.number("Q")
    if number not in TYPE_OF_NUMBER:
        known = ", ".join(kind.name for kind in TENSOR_TYPES)
        raise ValueError(f"'{name[:80]}' has the tensor type {number}, which foretell does not read; known: {known}")
    kind = TYPE_OF_NUMBER[number]
    if not all(shape) or shape[-1] % kind.weights:
        raise ValueError(f"'{name[:80]}' of shape {shape} does not fit blocks of {kind.weights}")
    return name, kind, shape, offset


def refuse(path: Path, reason: str) -> NoReturn:
    raise CheckpointError(
        f"{path} is damaged, cut short or not a GGUF file that foretell reads: {printable_name(reason[:300])}"
    )

"""Writing of a GGUF file, version 3."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretell.convert.gguf.blocks import BLOCKS, unpack_rows
from foretell.convert.gguf.header import ARCHITECTURE, ARRAY, STRING, TYPE_OF_NAME, VERSIONS
from foretell.model.quantization import dequantize
from foretell.storage.files import GGUF_MAGIC

ALIGNMENT = 32
SCALAR_CODES = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}  # type of a value -> GGUF's number, code for `struct`
ARRAY_CODES = {**SCALAR_CODES, int: (5, "i")}
MAX_INT8 = 127


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as in a file. kind: such as Q8_0. content: its floats, or the bytes of its rows (..., bytes)."""

    kind: str
    content: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        kind = TYPE_OF_NAME[self.kind]
        *rows, last = self.content.shape
        return (*rows, last * self.content.itemsize // kind.size * kind.weights)

    def values(self) -> Tensor:
        if self.kind not in BLOCKS:
            return self.content.float()
        return dequantize(**unpack_rows(self.kind, self.content)).view(self.shape)


def pack_tensor(tensor: Tensor, kind: str) -> PackedTensor:
    """A float32 tensor in F32, F16 or Q8_0."""
    if kind == "Q8_0":
        return PackedTensor(kind, pack_q8_0(tensor))
    return PackedTensor(kind, tensor.to(torch.float16 if kind == "F16" else torch.float32).contiguous())


def pack_q8_0(tensor: Tensor) -> Tensor:
    """Rows (..., I) as bytes: 32 integers with a scale in float16; a half is rounded away from 0, as in ggml."""
    blocks = tensor.reshape(-1, TYPE_OF_NAME["Q8_0"].weights)
    scales = blocks.abs().amax(1, keepdim=True) / MAX_INT8
    scaled = blocks * torch.where(scales == 0, 0, 1 / scales)
    whole = scaled.abs().floor()
    integers = scaled.sign() * (whole + (2 * (scaled.abs() - whole)).floor())
    parts = (scales.to(torch.float16), integers.to(torch.int8))
    return torch.cat([part.view(torch.uint8) for part in parts], dim=1).view(*tensor.shape[:-1], -1)


def write_gguf(path: Path, architecture: str, pairs: Mapping[str, Any], tensors: Mapping[str, PackedTensor]) -> None:
    """Write the file. Raises `OSError`."""
    entries, end = [], 0
    for name, tensor in tensors.items():
        entries.append(describe(name, tensor, end))
        end = aligned(end + tensor.content.nbytes)
    all_pairs = {ARCHITECTURE: architecture, **pairs}
    counts = struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(all_pairs))
    header = b"".join(
        (GGUF_MAGIC, counts, *(in_text(name) + in_value(value) for name, value in all_pairs.items()), *entries)
    )
    with path.open("wb") as file:
        file.write(padded(header))
        for tensor in tensors.values():
            file.write(padded(tensor.content.contiguous().view(-1).view(torch.uint8).numpy().tobytes()))


def describe(name: str, tensor: PackedTensor, offset: int) -> bytes:
    """The entry of a tensor in the table."""
    shape = tensor.shape
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return in_text(name) + sizes + struct.pack("<IQ", TYPE_OF_NAME[tensor.kind].number, offset)


def in_text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def in_value(value: Any) -> bytes:
    """A value after the number of its type."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + in_text(value)
    if not isinstance(value, list):
        number, code = SCALAR_CODES[type(value)]
        return struct.pack(f"<I{code}", number, value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(in_text, value))
    number, code = ARRAY_CODES[type(value[0])]
    return struct.pack(f"<IIQ{len(value)}{code}", ARRAY, number, len(value), *value)


def aligned(size: int) -> int:
    return size + -size % ALIGNMENT


def padded(data: bytes) -> bytes:
    return data.ljust(aligned(len(data)), b"\0")

"""f32, f16 and q8_0: what each tensor is stored as, packed and unpacked by the `gguf` package.

q8_0 keeps blocks of 32 numbers of a row as 8-bit integers and one scale in float16.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from foretell.errors import OutputError
from foretell.textbook.vectors import Matrix

# as on the command line -> llama.cpp's number for a file that mostly has it
PRECISIONS = {"f32": 0, "f16": 1, "q8_0": 7}
BLOCK = 32
ALWAYS_FULL = ("position_embd.weight",)  # llama.cpp adds its rows as they are


def precision_of(name: str, shape: tuple[int, ...], wanted: str) -> str:
    """How a tensor is stored: vectors in f32, rows that are no multiple of 32 numbers in f16 instead of q8_0."""
    if len(shape) < 2 or name in ALWAYS_FULL:
        return "f32"
    if wanted == "q8_0" and shape[-1] % BLOCK:
        return "f16"
    return wanted


def pack(gguf: ModuleType, name: str, array: Matrix, precision: str) -> np.ndarray[Any, Any]:
    """The bytes of a tensor; numbers that would become infinite are an `OutputError`."""
    kind = gguf.GGMLQuantizationType[precision.upper()]
    with np.errstate(over="ignore", invalid="ignore"):
        packed = gguf.quantize(array, kind)
        if not np.isfinite(gguf.dequantize(packed, kind)).all():
            raise OutputError(f"'{name}' holds numbers that are not finite in {precision}; give another --dtype")
    return packed


def unpack(gguf: ModuleType, packed: np.ndarray[Any, Any], precision: str) -> Matrix:
    """The numbers of a tensor in float32."""
    return gguf.dequantize(packed, gguf.GGMLQuantizationType[precision.upper()])

"""Tensors inside JSON, every bit kept: base64 of little-endian numbers, with the dtype's name beside them."""

from __future__ import annotations

import base64
import binascii

import numpy as np
import torch
from torch import Tensor

from foretell.config import Section
from foretell.errors import DataError

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float64, torch.float32, torch.bfloat16)}
DTYPES["float16"] = torch.float16
WORDS = {2: (torch.int16, "<i2"), 4: (torch.int32, "<i4"), 8: (torch.int64, "<i8")}  # by bytes: numpy has no bfloat16


class Packed(Section):
    """A vector in writing."""

    dtype: str
    data: str


def pack(vector: Tensor) -> dict[str, str]:
    """A vector (N,) of floating-point numbers as `{"dtype", "data"}`."""
    word, order = WORDS[vector.itemsize]
    numbers = vector.contiguous().view(word).numpy().astype(order)
    return {"dtype": str(vector.dtype).removeprefix("torch."), "data": base64.b64encode(numbers.tobytes()).decode()}


def unpack(packed: Packed) -> Tensor:
    """The vector with the bits that it had; what was not packed by `pack` is a `DataError`."""
    if packed.dtype not in DTYPES:
        raise DataError(f"packed numbers have the dtype '{packed.dtype}'; known are {', '.join(sorted(DTYPES))}")
    dtype = DTYPES[packed.dtype]
    word, order = WORDS[dtype.itemsize]
    try:
        data = base64.b64decode(packed.data, validate=True)
    except binascii.Error as error:
        raise DataError(f"packed numbers are not base64: {error}") from None
    if not data or len(data) % dtype.itemsize:
        raise DataError(f"packed numbers have {len(data)} bytes, which is not a whole number of {packed.dtype}")
    numbers = np.frombuffer(data, order)
    return torch.from_numpy(numbers.astype(numbers.dtype.newbyteorder("="))).to(word).view(dtype)

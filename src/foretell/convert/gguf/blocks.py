"""The blocks of GGUF's tensors: integers with the scales and minima of their groups, unpacked.

A weight is integer * scale (+ minimum), computed in float32: the bits of the `gguf` package's dequantisation. In the K
types a scale is an integer times a unit for 256 inputs, and so is a minimum.

Source: https://github.com/ggml-org/ggml, src/ggml-common.h and src/ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import cast

import torch
from torch import Tensor

from foretell.config.quantization import FormName
from foretell.convert.gguf.header import TYPE_OF_NAME
from foretell.model.quantization import FORMS, dequantize, pack_int4
from foretell.storage.safetensors_files import new_tensor, read_tensor
from foretell.storage.safetensors_header import StoredTensor

WEIGHTS_AT_A_TIME = 2**22

Buffers = dict[str, Tensor]  # integers (N, I); scales, minima (N, groups); scale_units, minimum_units (N, I / 256)


def float16_at(blocks: Tensor, start: int) -> Tensor:
    return blocks[:, start : start + 2].contiguous().view(torch.float16)  # (N, 1)


def halves(data: Tensor) -> Tensor:
    """The lower halves of all bytes (..., n), then the upper halves: (..., 2, n)."""
    return torch.stack((data & 15, data >> 4), dim=-2)


def bits(data: Tensor) -> Tensor:
    """Bits of bytes (..., n), each as a number: (..., n, 8)."""
    return data[..., None] >> torch.arange(8, dtype=torch.uint8) & 1


def centred(integers: Tensor, offset: int) -> Tensor:
    return integers.view(torch.int8) - offset


def q4_0(blocks: Tensor) -> Buffers:
    return {"integers": centred(halves(blocks[:, 2:]).flatten(1), 8), "scales": float16_at(blocks, 0)}


def q4_1(blocks: Tensor) -> Buffers:
    integers = halves(blocks[:, 4:]).flatten(1)
    return {"integers": integers.view(torch.int8), "scales": float16_at(blocks, 0), "minima": float16_at(blocks, 2)}


def five_bits(data: Tensor) -> Tensor:
    """Integers (N, 32) from their highest bits, in 4 bytes, and their lower halves, in 16."""
    return halves(data[:, 4:]).flatten(1) | bits(data[:, :4]).flatten(1) << 4


def q5_0(blocks: Tensor) -> Buffers:
    return {"integers": centred(five_bits(blocks[:, 2:]), 16), "scales": float16_at(blocks, 0)}


def q5_1(blocks: Tensor) -> Buffers:
    integers = five_bits(blocks[:, 4:]).view(torch.int8)
    return {"integers": integers, "scales": float16_at(blocks, 0), "minima": float16_at(blocks, 2)}


def q8_0(blocks: Tensor) -> Buffers:
    return {"integers": blocks[:, 2:].view(torch.int8), "scales": float16_at(blocks, 0)}


def with_six_bit_factors(blocks: Tensor, integers: Tensor) -> Buffers:
    """The 8 scales and 8 minima of a block of Q4_K or Q5_K, in 12 bytes of 6 bits per factor."""
    first, second, mixed = blocks[:, 4:16].unflatten(1, (3, 4)).unbind(1)  # the first four of both, parts of the others
    scales = torch.cat((first & 63, mixed & 15 | first >> 2 & 48), dim=1)
    minima = torch.cat((second & 63, mixed >> 4 | second >> 2 & 48), dim=1)
    units = {"scale_units": float16_at(blocks, 0), "minimum_units": -float16_at(blocks, 2)}
    return {"integers": integers.flatten(1).view(torch.int8), "scales": scales, "minima": minima, **units}


def q4_k(blocks: Tensor) -> Buffers:
    return with_six_bit_factors(blocks, halves(blocks[:, 16:].unflatten(1, (4, 32))))


def q5_k(blocks: Tensor) -> Buffers:
    lower, upper = halves(blocks[:, 48:].unflatten(1, (4, 32))).flatten(1, 2), bits(blocks[:, 16:48]).mT  # (N, 8, 32)
    return with_six_bit_factors(blocks, lower | upper << 4)


def q6_k(blocks: Tensor) -> Buffers:
    lower = halves(blocks[:, :128].unflatten(1, (2, 64))).unflatten(-1, (2, 32)).flatten(1, 3)  # (N, 8, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    upper = (blocks[:, 128:192].unflatten(1, (2, 1, 32)) >> shifts & 3).flatten(1, 2)
    scales = blocks[:, 192:208].view(torch.int8)
    integers = centred((lower | upper << 4).flatten(1), 32)
    return {"integers": integers, "scales": scales, "scale_units": float16_at(blocks, 208)}


BLOCKS: dict[str, Callable[[Tensor], Buffers]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}


def unpack_rows(kind: str, rows: Tensor) -> Buffers:
    """Rows (N, bytes) of a type of `BLOCKS`."""
    size = TYPE_OF_NAME[kind].size
    parts = BLOCKS[kind](rows.reshape(-1, size))
    return {name: part.reshape(len(rows), -1) for name, part in parts.items()}


def iter_rows(stored: StoredTensor) -> Iterator[tuple[slice, Buffers]]:
    """The rows of a tensor of a type of `BLOCKS`, some at a time, so that memory peaks little above the result."""
    count, inputs = prod(stored.shape[:-1]), stored.shape[-1]
    row_bytes, step = stored.size // count, max(1, WEIGHTS_AT_A_TIME // inputs)
    for first in range(0, count, step):
        last = min(first + step, count)
        start, end = (stored.start + row * row_bytes for row in (first, last))
        part = replace(stored, dtype="U8", shape=(last - first, row_bytes), start=start, end=end)
        yield slice(first, last), unpack_rows(stored.dtype, read_tensor(part, torch.uint8))


def read_matrix(stored: StoredTensor) -> Buffers:
    """A matrix (O, I) of a type of `BLOCKS` as the buffers of a quantised layer."""
    form = FORMS[cast(FormName, stored.dtype.lower())]
    count, inputs = stored.shape
    sizes = form.empty(count, inputs)
    result = {name: new_tensor(tuple(buffer.shape), buffer.dtype) for name, buffer in sizes.items()}
    for rows, parts in iter_rows(stored):
        if form.scheme == "int4":
            parts["integers"] = pack_int4(parts["integers"] if form.has_minima else parts["integers"] + 8)
        for name, part in parts.items():
            result[name][rows] = part
    return result


def read_floats(stored: StoredTensor, dtype: torch.dtype) -> Tensor:
    """A tensor of any type as floating-point numbers, which are exact in float32."""
    if stored.dtype not in BLOCKS:
        return read_tensor(stored, dtype)
    result = new_tensor(stored.shape, dtype)
    for rows, parts in iter_rows(stored):
        result.view(-1, stored.shape[-1])[rows] = dequantize(**parts)
    return result

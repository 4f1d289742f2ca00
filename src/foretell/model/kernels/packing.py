"""The memory layouts of weights and activations for products of few rows.

Outputs are packed in tiles of 16, one output per lane of a vector: so there are no additions across lanes, biases and
scales are vectors in memory, and an activation is read once for 16 outputs. Tiles are contiguous, and a tile's weights
are stored in the order in which a kernel reads them, so memory is read sequentially.

    float32   16 words per input: a number for each output
    bfloat16  16 words per two inputs: the first in the lower half of a word
    int8      16 words per four inputs: a byte each, from the lowest on
    int4      16 words per eight inputs: byte i holds input i in its lower half and input i + 4 in its upper half

Vector kernels multiply float32 activations. The others multiply planes. Weights in bfloat16 are multiplied by
bfloat16 planes whose sum is the activation. Weights in int8 and int4 are multiplied by integers: within a chunk of
inputs, x = scale (integer + rest / 256), where the activation scale is the largest absolute value over 32,639. An
integer of 16 bits is one plane for AVX2; for VNNI and AMX it is two planes of int8, the first 256 times the second.
Without the rest, the error is at most 1 / 65,278 of the largest value, less than the rounding of bfloat16 in most
elements. With it, a further plane, activations are as precise as float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from foretell.model.kernels import vectors as v
from foretell.model.kernels.compiling import compiled, inlined
from foretell.model.kernels.vector_math import row_sum

LANES = v.LANES
INPUTS = 32  # packed rows are padded with zeros to a multiple of this: the inputs of one AMX instruction
MAX_INT = 32639.0  # 127 * 256 + 127: both bytes are at most 127
REST = 256.0  # the scale of integers divided by the scale of their rest
LARGEST_REST = 127.0
SMALLEST = 1e-33  # MAX_INT divided by a smaller number would be infinite
MAGIC = 1.5 * 2**23  # adding this to a number below 2^22 leaves the rounded integer in the lowest bits
MAGIC_BITS = 0x4B400000
UPPER_HALF = 0xFFFF0000

# A packed matrix for compiled code: its kernels and arrays by address, and its sizes. plane_bytes: bytes of an
# activation in a plane; 0 if the kernel reads the activations themselves. minima: 1 if there are any
MATRIX = np.dtype(
    v.fields("kernel few_rows_kernel words factors bias bits outputs inputs group plane_bytes turns minima")
)


@dataclass(frozen=True)
class PackedMatrix:
    """Weights (outputs, inputs), packed. `bits` per weight: 32 and 16 are floating point, 8 and 4 integers with scales.

    words: the weights. factors: scales (tiles, groups, 16), or pairs of scales and minima (tiles, groups, 2, 16), in
    bfloat16, float16 or float32. bias: one per output, zeros where a layer has none.
    """

    words: Tensor
    factors: Tensor
    bias: Tensor
    bits: int
    outputs: int
    inputs: int
    group: int  # inputs that share a scale; all inputs if there are no scales
    has_minima: bool = False
    turns: int = 1  # distance between tiles, in tiles; above 1 if matrices are interleaved

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.factors.nbytes + self.bias.nbytes

    def part(self, first: int, outputs: int, turns: int = 1) -> PackedMatrix:
        """A view of `outputs` outputs: the tiles first, first + turns, and so on."""
        count = len(self.bias) // LANES
        words, factors = (
            values.view(count, len(values) // count)[first:].flatten() for values in (self.words, self.factors)
        )
        bias = self.bias.view(count, LANES)[first::turns].flatten()
        return replace(self, words=words, factors=factors, bias=bias, outputs=outputs, turns=turns)


def pack_floats(weight: Tensor, bias: Tensor | None) -> PackedMatrix:
    """Pack a weight (O, I) in float32 or bfloat16."""
    is_wide = weight.dtype == torch.float32
    padded = pad_matrix(weight.detach())  # (N, K)
    columns = padded if is_wide else padded.view(torch.int32)  # (N, K), or pairs (N, K / 2)
    return make_packed(columns, torch.zeros(0), weight.shape, bias, 32 if is_wide else 16, weight.shape[1])


def pack_int8(integers: Tensor, scales: Tensor, minima: Tensor | None, bias: Tensor | None) -> PackedMatrix:
    """Pack integers (O, I) in int8 with scales, and perhaps minima, (O, groups)."""
    group = integers.shape[1] // scales.shape[1]
    columns = pad_matrix(integers).view(torch.int32)  # (N, K / 4)
    return make_packed(columns, factor_tiles(scales, minima), integers.shape, bias, 8, group, minima is not None)


def pack_int4(integers: Tensor, scales: Tensor, minima: Tensor, bias: Tensor | None) -> PackedMatrix:
    """Pack integers 0..15 (O, I) in uint8 with scales and minima (O, groups)."""
    group = integers.shape[1] // scales.shape[1]
    lower, upper = pad_matrix(integers).unflatten(1, (-1, 2, 4)).unbind(2)  # (N, K / 8, byte): halves of the bytes
    columns = (lower | upper << 4).view(torch.int32).flatten(1)  # (N, K / 8)
    return make_packed(columns, factor_tiles(scales, minima), integers.shape, bias, 4, group, True)


def pad_matrix(weight: Tensor) -> Tensor:
    """A weight with zeros up to full tiles and a multiple of INPUTS."""
    missing = (0, -weight.shape[1] % INPUTS, 0, -weight.shape[0] % LANES)
    return (pad(weight, missing) if any(missing) else weight).contiguous()  # `pad` copies even without padding


def factor_tiles(scales: Tensor, minima: Tensor | None) -> Tensor:
    """Scales (O, groups) as (tiles, groups, 16), with minima as (tiles, groups, 2, 16); zeros up to full tiles."""
    parts = [tiles(pad(part, (0, 0, 0, -part.shape[0] % LANES))) for part in (scales, minima) if part is not None]
    return parts[0] if minima is None else torch.stack(parts, dim=2)


def tiles(columns: Tensor) -> Tensor:
    """A copy of (N, C) in tiles of 16 outputs: (N / 16, C, 16)."""
    return columns.unflatten(0, (-1, LANES)).transpose(1, 2).clone(memory_format=torch.contiguous_format)


def make_packed(
    columns: Tensor,
    factors: Tensor,
    shape: torch.Size,
    bias: Tensor | None,
    bits: int,
    group: int,
    has_minima: bool = False,
) -> PackedMatrix:
    """A packed matrix of words (N, C) and factors; `shape` is the weight's before padding."""
    outputs, inputs = shape
    biases = torch.zeros(len(columns))
    if bias is not None:
        biases[:outputs] = bias.detach().float()
    # both are new tensors, whose addresses are multiples of 64 in torch
    return PackedMatrix(tiles(columns).flatten(), factors.flatten(), biases, bits, outputs, inputs, group, has_minima)


# --- activations: in compiled code, all arrays by address -------------------------------------------------------------


@inlined
def padded_inputs(inputs):
    """The number of inputs per row that kernels read, including padding."""
    return (inputs + 31) // 32 * 32


@inlined
def padded_outputs(outputs):
    """The number of outputs per row that kernels write, including padding."""
    return (outputs + 15) // 16 * 16


@inlined
def num_planes(matrix, is_narrow):
    """The number of planes that a matrix is multiplied by; 0 if the kernel reads the activations themselves."""
    if matrix.plane_bytes == 0:
        return 0
    if matrix.bits < 16:
        return 3 - matrix.plane_bytes if is_narrow else 4 - matrix.plane_bytes
    return 1 if is_narrow else 3


@inlined
def chunk_of(group):
    """The number of inputs that share an activation scale: 32, 64, 128, 192 or 256; it divides the group."""
    if group % 64 != 0:
        return 32
    if group % 256 == 0:
        return 256
    if group % 192 == 0:
        return 192
    return 128 if group % 128 == 0 else 64


@inlined
def scales_of(matrix, prepared, rows, is_narrow):
    """The address of the activation scales, one per chunk, behind the planes."""
    planes = num_planes(matrix, is_narrow) * rows * padded_inputs(matrix.inputs) * matrix.plane_bytes
    return prepared + (planes + 63) // 64 * 64


@inlined
def offsets_of(scales, group, inputs, rows):
    """The address of the offsets of chunks, behind the scales."""
    return scales + rows * (inputs // chunk_of(group)) * 4


@inlined
def sums_of(scales, group, inputs, rows, P):
    """The address of the sums of groups, behind any scales and offsets."""
    return scales + (P + 1 if P > 0 else 0) * rows * (inputs // chunk_of(group)) * 4


@compiled
def prepare(matrix, x, prepared, rows, is_narrow, first, last):
    """Write the planes, scales and sums that a kernel reads, for rows first, ... last - 1 of x (rows, K)."""
    K, P = padded_inputs(matrix.inputs), num_planes(matrix, is_narrow)
    scales = scales_of(matrix, prepared, rows, is_narrow)
    if matrix.bits >= 16:
        split_planes(x, prepared, P, rows, K, first, last)
    elif P > 0:
        round_planes(matrix, x, prepared, rows, is_narrow, first, last)
    if matrix.minima != 0:
        sums = sums_of(scales, matrix.group, matrix.inputs, rows, P)
        sum_groups(x, K, matrix.group, sums, matrix.inputs // matrix.group, first, last)


@compiled
def round_planes(matrix, x, planes, rows, is_narrow, first, last):
    """Planes (rows, P, K) of integers, scales (rows, K / chunk) and offsets (rows, P, K / chunk) of x (rows, K).

    A chunk that is not finite has the scale NaN. An offset is -128 times the sum of a plane's integers; it corrects
    their products with weights that are 128 too large.
    """
    K, P, chunk = padded_inputs(matrix.inputs), num_planes(matrix, is_narrow), chunk_of(matrix.group)
    scales, size = scales_of(matrix, planes, rows, is_narrow), matrix.plane_bytes
    zero, shift, chunks = v.broadcast(0.0), v.broadcast(MAGIC), K // chunk
    to_rest, largest_rest = v.broadcast(REST), v.broadcast(LARGEST_REST)
    none, to_integer, half = v.broadcast_int(0), v.broadcast_int(-MAGIC_BITS), v.broadcast_int(128)
    for index in range(first * chunks, last * chunks):
        start, row = index * chunk, index // chunks
        largest, check = zero, zero
        for i in range(start, start + chunk, 16):
            largest = v.maximum(largest, v.absolute(v.load_float(x, i)))
            check = v.fma(v.load_float(x, i), zero, check)  # NaN if x is not finite
        most = v.reduce_max(largest)
        v.write_float(scales, index, most / np.float32(MAX_INT) + v.reduce_add(check))
        inverse = v.broadcast(np.float32(MAX_INT) / most if most > np.float32(SMALLEST) else np.float32(0))
        sum_upper, sum_lower, sum_rest = none, none, none
        for i in range(start, start + chunk, 16):
            scaled, at = v.multiply(v.load_float(x, i), inverse), row * (P - 1) * K + i
            shifted = v.add(scaled, shift)
            integers = v.add_int(v.bits_of(shifted), to_integer)
            if size == 2:
                v.store_pairs(planes, at, integers)
            else:
                upper = v.shift_right_signed(v.add_int(integers, half), 8)
                v.store_int8(planes, at, upper)
                v.store_int8(planes, at + K, integers)
                sum_upper = v.add_int(sum_upper, upper)
                sum_lower = v.add_int(sum_lower, v.shift_right_signed(v.shift_left(integers, 24), 24))
            if P + size == 4:
                rest = v.minimum(v.multiply(v.subtract(scaled, v.subtract(shifted, shift)), to_rest), largest_rest)
                integers = v.add_int(v.bits_of(v.add(rest, shift)), to_integer)
                if size == 2:
                    v.store_pairs(planes, at + K, integers)
                else:
                    v.store_int8(planes, at + 2 * K, integers)
                    sum_rest = v.add_int(sum_rest, integers)
        if size == 1:
            offset = rows * chunks + row * P * chunks + index % chunks  # offset of the first plane
            v.write_int32(scales, offset, offset_of(sum_upper))
            v.write_int32(scales, offset + chunks, offset_of(sum_lower))
            if P == 3:
                v.write_int32(scales, offset + 2 * chunks, offset_of(sum_rest))


@inlined
def offset_of(sums):
    """-128 times the sum of the lanes."""
    total = v.reduce_add(v.cast_int(sums))
    return np.int32(-128 * total)


@compiled
def split_planes(x, planes, P, rows, K, first, last):
    """Split x (rows, K) into bfloat16 planes (P, rows, K) whose sum is x: one if x is exact in bfloat16, else three.

    Each plane is the upper half of the remainder; infinities and NaN are only in the first plane.
    """
    upper = v.broadcast_int(UPPER_HALF)
    for i in range(first * K, last * K if P > 0 else 0, 16):
        rest = v.load_float(x, i)
        for plane in range(P):
            head = v.bitwise_and(v.quiet_bits(rest), upper)
            v.store_int16(planes, plane * rows * K + i, v.shift_right(head, 16))
            rest = v.where_finite(rest, v.subtract(rest, v.from_bits(head)))


@compiled
def sum_groups(x, K, group, sums, groups, first, last):
    """The sums of x (M, K) over its groups of inputs, (M, groups)."""
    for row in range(first, last):
        for i in range(groups):
            v.write_float(sums, row * groups + i, row_sum(x, row * K + i * group, group))

"""Matrix products of few rows on Intel's matrix unit (AMX): eight tiles of 16 rows of 64 bytes.

The unit multiplies bfloat16 and adds in float32 (denormal numbers count as zero), or multiplies int8 and adds in int32.
Activations are split into planes (packing.py): one or three of bfloat16, two or three of int8. The products of a chunk
of integers are exact; chunks are added in float32.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from llvmlite import ir

from foretell.model.kernels import vectors as v
from foretell.model.kernels.compiling import FEATURES, inlined, merged
from foretell.model.kernels.packing import INPUTS, REST, chunk_of, padded_inputs
from foretell.model.kernels.vector_math import allocate, keep
from foretell.model.kernels.vector_matmul import factor_of, load_factors, tile_start

REQUEST_PERMISSION, TILE_DATA, ARCH_PRCTL = 0x1023, 18, 158  # Linux, x86-64: arch_prctl(ARCH_REQ_XCOMP_PERM, 18)

ROWS = 16  # rows in a tile of activations
AHEAD, AHEAD_INTEGERS = 512, 1024  # prefetch distance, in words
SECOND, SUMS = 3 * 256, 6 * 256  # offset of the sums of the second tile, and size of the sums of two tiles, in words
TOTALS = 2 * SUMS  # sums of even chunks, sums of odd chunks, and the totals of two tiles
SCRATCH = TOTALS + 2 * 256  # words per thread


def is_permitted() -> bool:
    """True if the processor has AMX and Linux lets this process use it; the process must request this once."""
    if not {"avx512f", "amx-tile", "amx-bf16", "amx-int8"} <= FEATURES or sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0


HAS_AMX = is_permitted()


# --- instructions; the numbers of tiles are constants -----------------------------------------------------------------


def tile_number(tile):
    """The operand for a tile."""
    return ir.Constant(v.INT8, tile)


@v.operation(v.void, v.integer)
def configure(builder, settings):
    """Set the sizes of this thread's tiles; the format of the 64 bytes is in Intel's manual under `ldtilecfg`."""
    v.call(builder, "llvm.x86.ldtilecfg", v.VOID, v.pointer(builder, settings, ir.Constant(v.INT64, 0), v.INT8))


@v.operation(v.void)
def release(builder):
    """Release this thread's tiles."""
    v.call(builder, "llvm.x86.tilerelease", v.VOID)


@v.operation(v.void, v.LITERAL)
def zero(builder, tile):
    v.call(builder, "llvm.x86.tilezero", v.VOID, tile_number(tile))


@v.operation(v.void, v.LITERAL, v.integer, v.integer, v.integer)
def load(builder, tile, address, index, stride):
    """Load a tile whose rows begin at the index-th word from an address and are `stride` bytes apart."""
    where = v.pointer(builder, address, index, v.INT32)
    bytes_at = builder.bitcast(where, v.INT8.as_pointer())
    v.call(builder, "llvm.x86.tileloadd64", v.VOID, tile_number(tile), bytes_at, stride)


@v.operation(v.void, v.LITERAL, v.integer, v.integer)
def store(builder, tile, address, index):
    """Store a tile's rows contiguously, from the index-th word from an address."""
    where = builder.bitcast(v.pointer(builder, address, index, v.INT32), v.INT8.as_pointer())
    v.call(builder, "llvm.x86.tilestored64", v.VOID, tile_number(tile), where, ir.Constant(v.INT64, 64))


def tile_dot(instruction):
    """An operation that adds the product of a tile of activations and a tile of weights to a third tile."""
    return v.operation(v.void, v.LITERAL, v.LITERAL, v.LITERAL)(
        lambda builder, sums, x, weights: v.call(
            builder, instruction, v.VOID, tile_number(sums), tile_number(x), tile_number(weights)
        )
    )


dot = tile_dot("llvm.x86.tdpbf16ps")  # rows of 32 bfloat16, and 16 pairs of inputs by 16 outputs
dot_int8 = tile_dot("llvm.x86.tdpbssd")  # rows of 64 signed bytes, and 16 times four inputs by 16 outputs


@inlined
def tile_settings():
    """The sizes of all tiles: 16 rows of 64 bytes."""
    settings = np.zeros(64, np.uint8)
    settings[0] = 1  # palette
    for tile in range(8):
        settings[16 + 2 * tile] = 64  # bytes per row
        settings[48 + tile] = ROWS
    return settings


# --- bfloat16 weights -------------------------------------------------------------------------------------------------


@inlined
def multiply_floats(p, first, last):
    """The outputs of tiles first, ... last - 1 for all rows."""
    settings, memory = tile_settings(), allocate(SCRATCH)
    for tile in range(7):  # tiles 0 to 5 (sums) and 6 (activations); 7 (weights) has 16 rows
        settings[48 + tile] = min(p.M, ROWS)
    configure(settings.ctypes.data)
    scratch = memory.ctypes.data
    for tile in range(first, last, 2):
        other = min(tile + 1, last - 1)  # the last of an odd number is computed twice
        for row in range(0, p.M, ROWS):
            float_pair(p, tile, other, row, scratch)
            write_pair(p, tile, other, row, scratch)
    release()
    keep(settings)
    keep(memory)


@inlined
def float_pair(p, tile, other, row, scratch):
    """Totals of two tiles of bfloat16 weights."""
    K = padded_inputs(p.inputs)
    start, second = tile_start(p, tile), tile_start(p, other)
    zero_sums()
    for k in range(0, K, INPUTS):
        at = row * K + k
        for i in range(0, 256, 16):
            v.prefetch(p.words, start + k * 8 + i + AHEAD)
            v.prefetch(p.words, second + k * 8 + i + AHEAD)
        load(7, p.words, start + k * 8, 64)
        multiply_tile(p.x, at, p.M * K, K * 2, p.P, 0, 1, 2)
        load(7, p.words, second + k * 8, 64)
        multiply_tile(p.x, at, p.M * K, K * 2, p.P, 3, 4, 5)
    store_sums(scratch, 0, p.P)
    for i in range(0, min(ROWS, p.M - row) * 16, 16):
        v.store_float(scratch, TOTALS + i, plane_sum(scratch, i, p.P))
        v.store_float(scratch, TOTALS + 256 + i, plane_sum(scratch, SECOND + i, p.P))


@inlined
def write_pair(p, tile, other, row, scratch):
    """Write the totals of two tiles, with their biases."""
    one, two = v.load_float(p.bias, tile * 16), v.load_float(p.bias, other * 16)
    for i in range(min(ROWS, p.M - row)):
        at = (row + i) * p.N
        v.store_float(p.out, at + tile * 16, v.add(v.load_float(scratch, TOTALS + i * 16), one))
        v.store_float(p.out, at + other * 16, v.add(v.load_float(scratch, TOTALS + 256 + i * 16), two))


@inlined
def zero_sums():
    zero(0)
    zero(1)
    zero(2)
    zero(3)
    zero(4)
    zero(5)


@merged
def multiply_tile(planes, at, plane, stride, P, first, second, third):
    """Multiply the weights in tile 7 by each plane of activations, and add to the tiles first, second and third."""
    load(6, planes, at // 2, stride)
    dot(first, 6, 7)
    if P == 3:
        load(6, planes, (at + plane) // 2, stride)
        dot(second, 6, 7)
        load(6, planes, (at + 2 * plane) // 2, stride)
        dot(third, 6, 7)


@inlined
def store_sums(scratch, at, P):
    """Write the sums of all planes and both tiles of outputs to the scratch memory."""
    store(0, scratch, at)
    store(3, scratch, at + 768)
    if P > 1:
        store(1, scratch, at + 256)
        store(4, scratch, at + 1024)
    if P > 2:
        store(2, scratch, at + 512)
        store(5, scratch, at + 1280)


@inlined
def plane_sum(scratch, at, P):
    """The sum over the planes of activations, which adds the smallest numbers first."""
    first = v.load_float(scratch, at)
    if P == 1:
        return first
    return v.add(first, v.add(v.load_float(scratch, at + 256), v.load_float(scratch, at + 512)))


# --- int8 weights -----------------------------------------------------------------------------------------------------


@inlined
def multiply_integers(p, first, last):
    """The outputs of tiles first, ... last - 1 for all rows."""
    width = min(64, chunk_of(p.group))
    settings, memory = tile_settings(), allocate(SCRATCH)
    for tile in range(8):  # 0 to 3 (sums), 4 and 5 (activations), 6 and 7 (weights)
        settings[48 + tile] = width // 4 if tile > 5 else min(p.M, ROWS)
    settings[16 + 2 * 4] = settings[16 + 2 * 5] = width
    configure(settings.ctypes.data)
    scratch = memory.ctypes.data
    for tile in range(first, last, 2):
        other = min(tile + 1, last - 1)  # the last of an odd number is computed twice
        for row in range(0, p.M, ROWS):
            integer_pair(p, tile, other, row, scratch)
            write_pair(p, tile, other, row, scratch)
    release()
    keep(settings)
    keep(memory)


@inlined
def integer_pair(p, tile, other, row, scratch):
    """The totals of two tiles for up to 16 rows, chunk by chunk.

    The sums of a chunk are read while the next chunk is computed, because stored tiles cannot be read at once.
    """
    chunk = chunk_of(p.group)
    start, distance = tile_start(p, tile), tile_start(p, other) - tile_start(p, tile)
    for i in range(0, 512, 16):
        v.store_float(scratch, TOTALS + i, v.broadcast(0.0))
    chunks = p.inputs // chunk
    for index in range(chunks):
        multiply_planes(p, row, index, start + index * chunk * 4, distance, scratch, index % 2 * SUMS)
        if index > 0:
            add_pair(p, tile, other, index - 1, row, scratch)
    add_pair(p, tile, other, chunks - 1, row, scratch)


@inlined
def multiply_planes(p, row, index, at, distance, scratch, sums):
    """Multiply a chunk of both tiles of weights, at `at` and `distance` words after it, by each plane.

    The sums are written to the scratch memory.
    """
    inputs, chunk = p.inputs, chunk_of(p.group)
    stride, first = p.P * inputs, p.x + row * p.P * inputs + index * chunk
    zero(0)
    zero(1)
    zero(2)
    zero(3)
    for i in range(0, chunk, 64):
        here = at + i * 4
        load(6, p.words, here, 64)
        load(4, first + i, 0, stride)
        dot_int8(0, 4, 6)
        load(7, p.words, here + distance, 64)
        dot_int8(2, 4, 7)
        load(5, first + i + inputs, 0, stride)
        dot_int8(1, 5, 6)
        dot_int8(3, 5, 7)
        prefetch_tiles(p.words, here + AHEAD_INTEGERS, distance)
    store(0, scratch, sums)
    store(1, scratch, sums + 256)
    store(2, scratch, sums + SECOND)
    store(3, scratch, sums + SECOND + 256)
    if p.P == 3:
        third_plane(first + 2 * inputs, stride, chunk, p.words, at, distance, scratch, sums)


@inlined
def prefetch_tiles(words, at, distance):
    """Prefetch two tiles of int8 weights."""
    for i in range(at, at + 256, 16):
        v.prefetch(words, i)
        v.prefetch(words, i + distance)


@inlined
def third_plane(plane, stride, chunk, words, at, distance, scratch, sums):
    """Multiply a chunk of both tiles of weights by the third plane, and write the sums."""
    zero(0)
    zero(2)
    for i in range(0, chunk, 64):
        load(4, plane + i, 0, stride)
        load(6, words, at + i * 4, 64)
        load(7, words, at + i * 4 + distance, 64)
        dot_int8(0, 4, 6)
        dot_int8(2, 4, 7)
    store(0, scratch, sums + 512)
    store(2, scratch, sums + SECOND + 512)


@inlined
def add_pair(p, tile, other, index, row, scratch):
    """Add the sums of a chunk to the totals of two tiles."""
    sums = index % 2 * SUMS
    add_chunk(p, tile, index, row, scratch, sums, TOTALS)
    add_chunk(p, other, index, row, scratch, sums + SECOND, TOTALS + 256)


@inlined
def add_chunk(p, tile, index, row, scratch, sums, total):
    """Add a chunk's sums times both scales to a tile's totals."""
    chunk = chunk_of(p.group)
    scales = load_factors(p, factor_of(p, tile, index * chunk // p.group))
    for i in range(min(ROWS, p.M - row)):
        at = total + i * 16
        activation_scale = v.broadcast_at(p.scales, (row + i) * (p.inputs // chunk) + index)
        parts = combined(scratch, sums + i * 16, p.P)
        v.store_float(scratch, at, v.fma(parts, v.multiply(activation_scale, scales), v.load_float(scratch, at)))


@inlined
def combined(scratch, at, P):
    """The sums over all planes of activations, in units of the second plane."""
    upper, lower = v.load_int(scratch, at), v.load_int(scratch, at + 256)
    integers = v.cast_int(v.add_int(v.shift_left(upper, 8), lower))
    if P == 3:
        return v.fma(v.cast_int(v.load_int(scratch, at + 512)), v.broadcast(1 / REST), integers)
    return integers

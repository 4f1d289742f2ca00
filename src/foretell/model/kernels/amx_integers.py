"""Matrix products of few rows and int8 or int4 weights on Intel's matrix unit (AMX), in exact integer sums.

Activations are planes of integers with a unit per chunk of inputs (activations.py). The products of a chunk are added
in int32, and the chunks in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretell.model.kernels import amx_vectors as amx
from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.activations import NEXT_PLANE, chunk_of, totals_of
from foretell.model.kernels.amx_rows import ROWS, SCRATCH, SECOND, SUMS, TOTALS, write_pair
from foretell.model.kernels.compiling import inlined
from foretell.model.kernels.integer_rows import (
    NIBBLES,
    IntegerPlanes,
    IntegerWeights,
    factor_of,
    tile_start,
)
from foretell.model.kernels.numba_arrays import aligned, keep
from foretell.model.kernels.numba_scalars import read_float

AHEAD = 1024  # words between the weights that are read and those that are prefetched
DECODED = 1024  # words of a decoded chunk of a tile of int4 weights


class Chunk(NamedTuple):
    """A chunk of inputs, the group it is in, and whether it is the last one there."""

    index: int
    group: int
    is_last: bool


def int8_tiles(words, factors, bias, inputs, group, planes, units, P, M, out, N, first, last):
    """The kernel of int8 weights."""
    integer_tiles(8, words, factors, bias, inputs, group, planes, units, P, M, out, N, first, last)


def int4_tiles(words, factors, bias, inputs, group, planes, units, P, M, out, N, first, last):
    """The kernel of int4 weights."""
    integer_tiles(4, words, factors, bias, inputs, group, planes, units, P, M, out, N, first, last)


@inlined
def integer_tiles(bits, words, factors, bias, inputs, group, planes, units, P, M, out, N, first, last):
    """The outputs of tiles first, ... last - 1 for all rows."""
    weights = IntegerWeights(bits, words, factors, inputs, group)
    x = IntegerPlanes(planes, units, totals_of(units, group, inputs, M, P), P, M)
    settings = tile_settings(min(M, ROWS), chunk_of(group))
    memory, bytes_of_int4 = aligned(SCRATCH), aligned(4 * DECODED)
    amx.configure(settings.ctypes.data)
    scratch, decoded = memory.ctypes.data, bytes_of_int4.ctypes.data
    for tile in range(first, last, 2):
        other = min(tile + 1, last - 1)  # the last of an odd number is computed twice
        for row in range(0, M, ROWS):
            multiply_pair(weights, tile, other, x, row, scratch, decoded)
            write_pair(bias, tile, other, row, M, out, N, scratch)
    amx.release()
    keep(settings)
    keep(memory)
    keep(bytes_of_int4)


@inlined
def multiply_pair(weights, tile, other, x, row, scratch, decoded):
    """The totals of two tiles for up to 16 rows, chunk by chunk.

    A tile can be loaded only some 50 cycles after its bytes were written. So int4 weights are decoded a chunk ahead,
    and the sums of a chunk are read when those of the next one are on their way.
    """
    chunk = chunk_of(weights.group)
    step = chunk * weights.bits // 2  # words of a chunk
    start, distance = tile_start(weights, tile), tile_start(weights, other) - tile_start(weights, tile)
    for i in range(0, 512, 16):
        v.store(scratch, TOTALS + i, v.full(np.float32(0)))
    if weights.bits == 4:
        decode_pair(weights.words, start, distance, chunk, decoded)
    groups, per_group = weights.inputs // weights.group, weights.group // chunk
    index = 0
    for group in range(groups):
        for part in range(per_group):
            at, sums = start + index * step, index % 2 * SUMS
            if weights.bits == 4:
                here = decoded + index % 2 * 2 * DECODED * 4
                if index + 1 < groups * per_group:
                    decode_pair(weights.words, at + step, distance, chunk, decoded + (index + 1) % 2 * 2 * DECODED * 4)
                multiply_planes(weights, x, row, index, here, 0, DECODED, scratch, sums)
            else:
                multiply_planes(weights, x, row, index, weights.words, at, distance, scratch, sums)
            if index > 0:
                is_last = part == 0  # the chunk before was the last of its group
                add_pair(weights, tile, other, Chunk(index - 1, group - is_last, is_last), x, row, scratch)
            index += 1
    add_pair(weights, tile, other, Chunk(index - 1, groups - 1, True), x, row, scratch)


@inlined
def decode_pair(words, start, distance, inputs, decoded):
    """The integers of int4 weights as bytes, for two tiles."""
    for i in range(inputs // 8):
        v.prefetch(words, start + i * 16 + AHEAD)
        v.prefetch(words, start + distance + i * 16 + AHEAD)
        decode(words, start + i * 16, decoded, i * 32)
        decode(words, start + distance + i * 16, decoded, DECODED + i * 32)


@inlined
def decode(words, at, decoded, to):
    """Eight inputs as bytes, four and four."""
    eight, nibbles = v.load_words(words, at), v.full_words(NIBBLES)
    v.store(decoded, to, v.both(eight, nibbles))
    v.store(decoded, to + 16, v.both(v.shift_right(eight, 4), nibbles))


@inlined
def multiply_planes(weights, x, row, index, words, at, distance, scratch, sums):
    """Multiply a chunk of both tiles of weights, which are at `at` and `distance` words later, by each plane.

    The sums are written to the scratch memory.
    """
    inputs, chunk = weights.inputs, chunk_of(weights.group)
    stride, first = x.P * inputs, x.planes + row * x.P * inputs + index * chunk
    amx.zero(0)
    amx.zero(1)
    amx.zero(2)
    amx.zero(3)
    for i in range(0, chunk, 64):
        here = at + i * 4
        amx.load(6, words, here, 64)
        amx.load(4, first + i, 0, stride)
        amx.dot_bytes(0, 4, 6)
        amx.load(7, words, here + distance, 64)
        amx.dot_bytes(2, 4, 7)
        amx.load(5, first + i + inputs, 0, stride)
        amx.dot_bytes(1, 5, 6)
        amx.dot_bytes(3, 5, 7)
        if weights.bits == 8:
            prefetch_tiles(words, here + AHEAD, distance)
    amx.store(0, scratch, sums)
    amx.store(1, scratch, sums + 256)
    amx.store(2, scratch, sums + SECOND)
    amx.store(3, scratch, sums + SECOND + 256)
    if x.P == 3:
        third_plane(first + 2 * inputs, stride, chunk, words, at, distance, scratch, sums)


@inlined
def prefetch_tiles(words, at, distance):
    """Ask for two tiles of int8 weights."""
    for i in range(at, at + 256, 16):
        v.prefetch(words, i)
        v.prefetch(words, i + distance)


@inlined
def third_plane(plane, stride, chunk, words, at, distance, scratch, sums):
    """Multiply a chunk of both tiles of weights by the third plane, and write the sums."""
    amx.zero(0)
    amx.zero(2)
    for i in range(0, chunk, 64):
        amx.load(4, plane + i, 0, stride)
        amx.load(6, words, at + i * 4, 64)
        amx.load(7, words, at + i * 4 + distance, 64)
        amx.dot_bytes(0, 4, 6)
        amx.dot_bytes(2, 4, 7)
    amx.store(0, scratch, sums + 512)
    amx.store(2, scratch, sums + SECOND + 512)


@inlined
def tile_settings(rows, chunk):
    """The sizes of tiles 0 to 3 (sums), 4 and 5 (activations, up to 64 bytes per row), 6 and 7 (weights)."""
    width = min(64, chunk)
    settings = np.zeros(64, np.uint8)
    settings[0] = 1  # palette
    for tile in range(8):
        settings[16 + 2 * tile] = 64  # bytes per row
        settings[48 + tile] = rows
    for tile in (4, 5):
        settings[16 + 2 * tile] = width
    for tile in (6, 7):
        settings[48 + tile] = width // 4
    return settings


@inlined
def add_pair(weights, tile, other, chunk, x, row, scratch):
    """Add the sums of a chunk to the totals of two tiles."""
    sums = chunk.index % 2 * SUMS
    add_chunk(weights, tile, chunk, x, row, scratch, sums, TOTALS)
    add_chunk(weights, other, chunk, x, row, scratch, sums + SECOND, TOTALS + 256)


@inlined
def add_chunk(weights, tile, chunk, x, row, scratch, sums, total):
    """Add a chunk's sums times unit and scale to a tile's totals; in int4 also its group's sum times the minimum."""
    groups, chunks = weights.inputs // weights.group, weights.inputs // chunk_of(weights.group)
    factor = factor_of(weights, tile, chunk.group)
    scales = v.load_bfloat16(weights.factors, factor)
    for i in range(min(ROWS, x.M - row)):
        at = total + i * 16
        unit = v.full(read_float(x.units, (row + i) * chunks + chunk.index))
        new = v.fma(combined(scratch, sums + i * 16, x.P), v.multiply(unit, scales), v.load_floats(scratch, at))
        if weights.bits == 4 and chunk.is_last:
            group_sum = v.full(read_float(x.totals, (row + i) * groups + chunk.group))
            new = v.fma(group_sum, v.load_bfloat16(weights.factors, factor + 16), new)
        v.store(scratch, at, new)


@inlined
def combined(scratch, at, P):
    """The sums over all planes of activations, in units of the first."""
    share = v.full(np.float32(1) / NEXT_PLANE)
    rest = v.to_floats(v.load_words(scratch, at + 256))
    if P == 3:
        rest = v.fma(v.to_floats(v.load_words(scratch, at + 512)), share, rest)
    return v.fma(rest, share, v.to_floats(v.load_words(scratch, at)))


KERNELS = {8: int8_tiles, 4: int4_tiles}

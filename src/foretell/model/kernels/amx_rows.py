"""Matrix products of few rows on Intel's matrix unit (AMX), with the results of weights in float32.

The unit multiplies bfloat16 and adds in float32. Weights in bfloat16, int8 and int4 are exact in bfloat16, and so are
activations of models in bfloat16. Float32 activations are split into three bfloat16 numbers whose sum they are
(8 + 8 + 8 bits), and each plane is multiplied.
"""

from __future__ import annotations

import numpy as np

from foretell.model.kernels import amx_vectors as amx
from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.compiling import inlined
from foretell.model.kernels.few_rows import int4_factors
from foretell.model.kernels.numba_arrays import aligned
from foretell.model.kernels.numba_scalars import read_float

ROWS = 16  # of a tile of activations
INPUTS = 32  # of a tile of activations or weights
PAIR = np.uint32(0x00780078)  # two integers of 4 bits at the head of the mantissas of two bfloat16 numbers
ONES = np.uint32(0x3F803F80)  # two bfloat16 numbers 1.0
AHEAD = 512  # words between the weights that are read and those that are prefetched
SECOND, SUMS = 3 * 256, 6 * 256  # float32 numbers: sums of the first tile's planes come before those of the second
TOTALS = 2 * SUMS  # sums of even groups, those of odd groups, and the totals of two tiles
SCRATCH = TOTALS + 2 * 256  # float32 numbers per thread
HALF = 8 * 256  # words: two decoded tiles of up to 128 inputs
DECODED = 2 * HALF  # words per thread


def float_tiles(words, factors, bias, inputs, group, planes, totals, P, M, out, N, first, last):
    """The kernel of bfloat16 weights."""
    K = (inputs + 31) // 32 * 32
    amx.configure(tile_settings(min(M, ROWS)).ctypes.data)
    memory = aligned(SCRATCH)
    scratch = memory.ctypes.data
    for tile in range(first, last, 2):
        other = min(tile + 1, last - 1)  # the last of an odd number is computed twice
        for row in range(0, M, ROWS):
            float_pair(words, tile, other, planes, P, M, K, row, scratch)
            write_pair(bias, tile, other, row, M, out, N, scratch)
    amx.release()


def int8_tiles(words, factors, bias, inputs, group, planes, totals, P, M, out, N, first, last):
    """The kernel of int8 weights."""
    integer_tiles(8, words, factors, bias, inputs, group, planes, totals, P, M, out, N, first, last)


def int4_tiles(words, factors, bias, inputs, group, planes, totals, P, M, out, N, first, last):
    """The kernel of int4 weights."""
    integer_tiles(4, words, factors, bias, inputs, group, planes, totals, P, M, out, N, first, last)


@inlined
def integer_tiles(bits, words, factors, bias, inputs, group, planes, totals, P, M, out, N, first, last):
    """The outputs of tiles first, ... last - 1 for all rows."""
    K = (inputs + 31) // 32 * 32
    amx.configure(tile_settings(min(M, ROWS)).ctypes.data)
    memory, weights = aligned(SCRATCH), aligned(DECODED)
    scratch, decoded = memory.ctypes.data, weights.ctypes.data
    for tile in range(first, last, 2):
        other = min(tile + 1, last - 1)
        for row in range(0, M, ROWS):
            integer_pair(
                bits, words, factors, inputs, group, tile, other, planes, P, M, K, row, totals, scratch, decoded
            )
            write_pair(bias, tile, other, row, M, out, N, scratch)
    amx.release()


@inlined
def tile_settings(rows):
    """The sizes of tiles 0 to 5 (sums) and 6 (activations) with this many rows, and 7 (weights) with 16."""
    settings = np.zeros(64, np.uint8)
    settings[0] = 1  # palette
    for tile in range(8):
        settings[16 + 2 * tile] = 64  # bytes per row
        settings[48 + tile] = rows if tile < 7 else ROWS
    return settings


@inlined
def float_pair(words, tile, other, planes, P, M, K, row, scratch):
    """Totals of two tiles of bfloat16 weights."""
    start, second = tile * K * 8, other * K * 8
    zero_sums()
    for k in range(0, K, INPUTS):
        at = row * K + k
        for i in range(0, 256, 16):
            v.prefetch(words, start + k * 8 + i + AHEAD)
            v.prefetch(words, second + k * 8 + i + AHEAD)
        amx.load(7, words, start + k * 8, 64)
        multiply_first(planes, at, M * K, K * 2, P)
        amx.load(7, words, second + k * 8, 64)
        multiply_second(planes, at, M * K, K * 2, P)
    store_sums(scratch, 0, P)
    for i in range(0, min(ROWS, M - row) * 16, 16):
        v.store(scratch, TOTALS + i, plane_sum(scratch, i, P))
        v.store(scratch, TOTALS + 256 + i, plane_sum(scratch, SECOND + i, P))


@inlined
def integer_pair(bits, words, factors, inputs, group, tile, other, planes, P, M, K, row, totals, scratch, decoded):
    """Totals of two tiles of integer weights, group by group.

    A tile can be loaded only some 50 cycles after its bytes were written. So weights are decoded a part ahead of their
    multiplication, and the sums of a group are read when those of the next group are on their way.
    """
    rows, groups = min(ROWS, M - row), inputs // group
    part = 128 if group % 128 == 0 else 64 if group % 64 == 0 else INPUTS  # inputs
    for i in range(0, 512, 16):
        v.store(scratch, TOTALS + i, v.full(np.float32(0)))
    decode_pair(bits, words, tile, other, 0, part, K, decoded, 0)
    count = half = 0
    for k in range(0, inputs, part):
        if k + part < inputs:
            decode_pair(bits, words, tile, other, k + part, part, K, decoded, HALF - half)
        if k % group == 0:
            zero_sums()
        for i in range(0, part, INPUTS):
            at = row * K + k + i
            amx.load(7, decoded, half + i * 16, 64)
            multiply_first(planes, at, M * K, K * 2, P)
            amx.load(7, decoded, half + (part + i) * 16, 64)
            multiply_second(planes, at, M * K, K * 2, P)
        half = HALF - half
        if (k + part) % group == 0:
            store_sums(scratch, count % 2 * SUMS, P)
            if count > 0:
                add_pair(bits, factors, tile, other, count - 1, groups, row, rows, totals, scratch, P)
            count += 1
    add_pair(bits, factors, tile, other, groups - 1, groups, row, rows, totals, scratch, P)


@inlined
def decode_pair(bits, words, tile, other, k, inputs, K, decoded, at):
    """Decode inputs k, k + 1, ... of two tiles."""
    for i in range(0, inputs, INPUTS):
        decode(bits, words, tile, k + i, K, decoded, at + i * 16)
        decode(bits, words, other, k + i, K, decoded, at + (inputs + i) * 16)


@inlined
def add_pair(bits, factors, tile, other, group, groups, row, rows, totals, scratch, P):
    """Add the sums of a group to the totals of two tiles."""
    sums = group % 2 * SUMS
    add_group(bits, factors, tile, group, groups, row, rows, totals, scratch, sums, TOTALS, P)
    add_group(bits, factors, other, group, groups, row, rows, totals, scratch, sums + SECOND, TOTALS + 256, P)


@inlined
def add_group(bits, factors, tile, group, groups, row, rows, totals, scratch, part, total, P):
    """Add a group's sums times its scale to a tile's totals; for int4 also the sum of its inputs times its minimum."""
    at = tile * groups + group
    if bits == 8:
        scales = v.load_bfloat16(factors, at * 16)
        for i in range(0, rows * 16, 16):
            old = v.load_floats(scratch, total + i)
            v.store(scratch, total + i, v.fma(plane_sum(scratch, part + i, P), scales, old))
    else:
        scales, minima = int4_factors(factors, at * 32)
        for i in range(rows):
            old = v.load_floats(scratch, total + i * 16)
            new = v.fma(plane_sum(scratch, part + i * 16, P), scales, old)
            v.store(scratch, total + i * 16, v.fma(v.full(read_float(totals, (row + i) * groups + group)), minima, new))


@inlined
def write_pair(bias, tile, other, row, M, out, N, scratch):
    """Write the totals of two tiles, with their biases."""
    one, two = v.load_floats(bias, tile * 16), v.load_floats(bias, other * 16)
    for i in range(min(ROWS, M - row)):
        at = (row + i) * N
        v.store(out, at + tile * 16, v.add(v.load_floats(scratch, TOTALS + i * 16), one))
        v.store(out, at + other * 16, v.add(v.load_floats(scratch, TOTALS + 256 + i * 16), two))


@inlined
def decode(bits, words, tile, k, K, decoded, at):
    """32 inputs of a tile as pairs of bfloat16 from decoded[at]: the integers of int8, 1 + integer / 16 of int4."""
    if bits == 8:
        start = (tile * K + k) * 4
        for i in range(16):
            even = v.as_words(v.to_floats(v.load_integers(words, start + i * 8)))
            odd = v.as_words(v.to_floats(v.load_integers(words, start + i * 8 + 4)))
            v.prefetch(words, start + i * 8 + AHEAD)
            v.store(decoded, at + i * 16, v.either(v.shift_right(even, 16), odd))
        return
    start = (tile * K + k) * 2
    pair, ones = v.full_words(PAIR), v.full_words(ONES)
    for i in range(4):
        eight = v.load_words(words, start + i * 16)
        v.prefetch(words, start + i * 16 + AHEAD)
        v.store(decoded, at + i * 64, v.either(v.both(v.shift_left(eight, 3), pair), ones))
        v.store(decoded, at + i * 64 + 16, v.either(v.both(v.shift_right(eight, 1), pair), ones))
        v.store(decoded, at + i * 64 + 32, v.either(v.both(v.shift_right(eight, 5), pair), ones))
        v.store(decoded, at + i * 64 + 48, v.either(v.both(v.shift_right(eight, 9), pair), ones))


@inlined
def zero_sums():
    """Set the sums to zero."""
    amx.zero(0)
    amx.zero(1)
    amx.zero(2)
    amx.zero(3)
    amx.zero(4)
    amx.zero(5)


@inlined
def multiply_first(planes, at, plane, stride, P):
    """Multiply the weights in tile 7 by each plane of activations, for the first tile of outputs."""
    amx.load(6, planes, at // 2, stride)
    amx.dot(0, 6, 7)
    if P == 3:
        amx.load(6, planes, (at + plane) // 2, stride)
        amx.dot(1, 6, 7)
        amx.load(6, planes, (at + 2 * plane) // 2, stride)
        amx.dot(2, 6, 7)


@inlined
def multiply_second(planes, at, plane, stride, P):
    """The same for the second tile of outputs."""
    amx.load(6, planes, at // 2, stride)
    amx.dot(3, 6, 7)
    if P == 3:
        amx.load(6, planes, (at + plane) // 2, stride)
        amx.dot(4, 6, 7)
        amx.load(6, planes, (at + 2 * plane) // 2, stride)
        amx.dot(5, 6, 7)


@inlined
def store_sums(scratch, at, P):
    """Write the sums of all planes and both tiles of outputs to the scratch memory."""
    amx.store(0, scratch, at)
    amx.store(3, scratch, at + 768)
    if P == 3:
        amx.store(1, scratch, at + 256)
        amx.store(2, scratch, at + 512)
        amx.store(4, scratch, at + 1024)
        amx.store(5, scratch, at + 1280)


@inlined
def plane_sum(scratch, at, P):
    """The sum over the planes of activations, the smallest numbers first."""
    first = v.load_floats(scratch, at)
    if P == 1:
        return first
    return v.add(first, v.add(v.load_floats(scratch, at + 256), v.load_floats(scratch, at + 512)))


KERNELS = {16: float_tiles, 8: int8_tiles, 4: int4_tiles}

"""Matrix products of few rows and bfloat16 weights on Intel's matrix unit (AMX).

The unit multiplies bfloat16 and adds in float32. Activations of models in bfloat16 are exact in it. Float32 activations
are split into three bfloat16 numbers whose sum they are (8 + 8 + 8 bits), and each plane is multiplied.
"""

from __future__ import annotations

import numpy as np

from foretell.model.kernels import amx_vectors as amx
from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.compiling import inlined
from foretell.model.kernels.numba_arrays import aligned, keep

ROWS = 16  # of a tile of activations
INPUTS = 32  # of a tile of activations or weights
AHEAD = 512  # words between the weights that are read and those that are prefetched
SECOND, SUMS = 3 * 256, 6 * 256  # words: sums of the first tile's planes come before those of the second
TOTALS = 2 * SUMS  # sums of even chunks, those of odd chunks, and the totals of two tiles
SCRATCH = TOTALS + 2 * 256  # words per thread


def float_tiles(words, factors, bias, inputs, group, planes, totals, P, M, out, N, first, last):
    """The kernel of bfloat16 weights."""
    K = (inputs + 31) // 32 * 32
    settings, memory = tile_settings(min(M, ROWS)), aligned(SCRATCH)
    amx.configure(settings.ctypes.data)
    scratch = memory.ctypes.data
    for tile in range(first, last, 2):
        other = min(tile + 1, last - 1)  # the last of an odd number is computed twice
        for row in range(0, M, ROWS):
            float_pair(words, tile, other, planes, P, M, K, row, scratch)
            write_pair(bias, tile, other, row, M, out, N, scratch)
    amx.release()
    keep(settings)
    keep(memory)


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
def write_pair(bias, tile, other, row, M, out, N, scratch):
    """Write the totals of two tiles, with their biases."""
    one, two = v.load_floats(bias, tile * 16), v.load_floats(bias, other * 16)
    for i in range(min(ROWS, M - row)):
        at = (row + i) * N
        v.store(out, at + tile * 16, v.add(v.load_floats(scratch, TOTALS + i * 16), one))
        v.store(out, at + other * 16, v.add(v.load_floats(scratch, TOTALS + 256 + i * 16), two))


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
    """Multiply the weights in tile 7 by each plane of activations, for the second tile of outputs."""
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
    if P > 1:
        amx.store(1, scratch, at + 256)
        amx.store(4, scratch, at + 1024)
    if P > 2:
        amx.store(2, scratch, at + 512)
        amx.store(5, scratch, at + 1280)


@inlined
def plane_sum(scratch, at, P):
    """The sum over the planes of activations, the smallest numbers first."""
    first = v.load_floats(scratch, at)
    if P == 1:
        return first
    return v.add(first, v.add(v.load_floats(scratch, at + 256), v.load_floats(scratch, at + 512)))


KERNELS = {16: float_tiles}

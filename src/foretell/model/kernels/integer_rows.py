"""Matrix products of few rows and int8 or int4 weights on vectors, in exact integer sums (VNNI of AVX-512).

The results have the same bits as those of the matrix unit (amx_integers.py), and the same arrays are read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretell.model.kernels import numba_rows as r
from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.activations import NEXT_PLANE, chunk_of, offsets_of, totals_of
from foretell.model.kernels.compiling import FEATURES, inlined

HAS_VNNI = {"avx512f", "avx512vnni"} <= FEATURES
AHEAD = 512  # words between the weights that are read and those that are prefetched
SIGNS = np.uint32(0x80808080)
NIBBLES = np.uint32(0x0F0F0F0F)
# Tuples with as many elements as 8, 4, 2 rows or one have planes: sums of so many are held in registers
ROWS, TWO_PLANES, THREE_PLANES = (tuple((0,) * rows * planes for rows in (8, 4, 2, 1)) for planes in (1, 2, 3))


def int8_tiles(words, factors, bias, inputs, group, planes, units, P, M, out, N, first, last):
    """The kernel of int8 weights."""
    multiply_tiles(8, words, factors, bias, inputs, group, planes, units, P, M, out, N, first, last)


def int4_tiles(words, factors, bias, inputs, group, planes, units, P, M, out, N, first, last):
    """The kernel of int4 weights."""
    multiply_tiles(4, words, factors, bias, inputs, group, planes, units, P, M, out, N, first, last)


class IntegerWeights(NamedTuple):
    """Packed weights in 8 or 4 bits; words and factors are addresses."""

    bits: int
    words: int
    factors: int
    inputs: int
    group: int


class IntegerPlanes(NamedTuple):
    """P planes of activations (M, P, inputs) with their units and the sums of their groups, all by address."""

    planes: int
    units: int
    totals: int
    P: int
    M: int


@inlined
def tile_start(weights, tile):
    """The first word of a tile."""
    return tile * ((weights.inputs + 31) // 32 * 32) * weights.bits // 2


@inlined
def factor_of(weights, tile, group):
    """The place of the scales of a tile's group; in int4 the minima follow them."""
    return (tile * (weights.inputs // weights.group) + group) * (16 if weights.bits == 8 else 32)


@inlined
def multiply_tiles(bits, words, factors, bias, inputs, group, planes, units, P, M, out, N, first, last):
    """The outputs of tiles first, ... last - 1 for all rows."""
    weights = IntegerWeights(bits, words, factors, inputs, group)
    x = IntegerPlanes(planes, units, totals_of(units, group, inputs, M, P), P, M)
    for tile in range(first, last):
        if P == 2:
            multiply_tile(weights, tile, x, bias, out, N, TWO_PLANES)
        else:
            multiply_tile(weights, tile, x, bias, out, N, THREE_PLANES)


@inlined
def multiply_tile(weights, tile, x, bias, out, N, planes):
    """One tile of outputs for all rows, eight at once and the last ones four, two or one."""
    row = 0
    while row + 8 <= x.M:
        multiply_rows(weights, tile, x, row, bias, out, N, ROWS[0], planes[0])
        row += 8
    if row + 4 <= x.M:
        multiply_rows(weights, tile, x, row, bias, out, N, ROWS[1], planes[1])
        row += 4
    if row + 2 <= x.M:
        multiply_rows(weights, tile, x, row, bias, out, N, ROWS[2], planes[2])
        row += 2
    if row < x.M:
        multiply_rows(weights, tile, x, row, bias, out, N, ROWS[3], planes[3])


@inlined
def multiply_rows(weights, tile, x, row, bias, out, N, rows, planes):
    """One tile of outputs for some rows. `rows` has as many elements, and `planes` as many as they have planes."""
    inputs, groups, chunk = weights.inputs, weights.inputs // weights.group, chunk_of(weights.group)
    chunks, per_group, share = inputs // chunk, weights.group // chunk, v.full(np.float32(1) / NEXT_PLANE)
    at, words, index = tile_start(weights, tile), chunk * weights.bits // 2, 0
    offsets = offsets_of(x.units, weights.group, inputs, x.M)
    sums = r.zeros(rows)
    for group in range(groups):  # in two loops, since to divide by a group's chunks took longer than their products
        factor = factor_of(weights, tile, group)
        scales = v.load_bfloat16(weights.factors, factor)
        for _ in range(per_group):
            four = (row * x.P * inputs + index * chunk) // 4  # the place of the first four integers
            if weights.bits == 8:
                integers = r.elements(planes, offsets, row * x.P * chunks + index, chunks)
                integers = int8_dots(integers, weights.words, at, chunk, x.planes, four, inputs // 4)
            else:
                integers = int4_dots(r.zero_words(planes), weights.words, at, chunk, x.planes, four, inputs // 4)
            parts = r.join_planes(sums, integers, share)
            sums = r.scale_by_units(sums, parts, scales, x.units, row * chunks + index, chunks)
            at, index = at + words, index + 1
        if weights.bits == 4:
            sums = r.fma(sums, v.load_bfloat16(weights.factors, factor + 16), x.totals, row * groups + group, groups)
    r.store(out, row * N + tile * 16, N, sums, v.load_floats(bias, tile * 16))


@inlined
def int8_dots(sums, words, at, chunk, x, first, stride):
    """Add the products of a chunk of int8 weights, each taken as 128 more than it is."""
    signs = v.full_words(SIGNS)
    for i in range(chunk // 4):
        v.prefetch(words, at + i * 16 + AHEAD)
        sums = r.dot_bytes(sums, v.differ(v.load_words(words, at + i * 16), signs), x, first + i, stride)
    return sums


@inlined
def int4_dots(sums, words, at, chunk, x, first, stride):
    """Add the products of a chunk of int4 weights."""
    nibbles = v.full_words(NIBBLES)
    for i in range(chunk // 8):
        v.prefetch(words, at + i * 16 + AHEAD)
        eight = v.load_words(words, at + i * 16)
        sums = r.dot_bytes(sums, v.both(eight, nibbles), x, first + i * 2, stride)
        sums = r.dot_bytes(sums, v.both(v.shift_right(eight, 4), nibbles), x, first + i * 2 + 1, stride)
    return sums


KERNELS = {8: int8_tiles, 4: int4_tiles}

"""Attention of single queries over the blocks of a paged cache, without a copy of the cache.

Every new token is a query: it sees the positions of its row up to its own, within the window. The result does not
depend on other rows, nor on how the tokens of a row are divided into passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretell.model.kernels import vectors as v
from foretell.model.kernels.compiling import inlined, merged
from foretell.model.kernels.vector_math import exponential, keep, read_number, rounded, rounded_number, write_numbers
from foretell.model.paged_cache import POSITIONS_PER_BLOCK

LANES = v.LANES  # positions whose scores are computed at once; the block size is a multiple of it
SIXTEEN, FOUR, SINGLE = (0,) * 16, (0,) * 4, (0,)  # their lengths are numbers of vectors held in registers
assert POSITIONS_PER_BLOCK % LANES == 0


class CachedRow(NamedTuple):
    """One row of one layer of a paged cache.

    The addresses of the layer's keys and values (G, N, P, E), their strides in elements, and the address of the row's
    block table (int32).
    """

    keys: int
    values: int
    head_stride: int
    block_stride: int
    table: int


@inlined
def index_of(row, position, head, width):
    """Index of the first element of a position's key or value."""
    block = np.int64(v.read_int32(row.table, position // POSITIONS_PER_BLOCK))
    return head * row.head_stride + block * row.block_stride + position % POSITIONS_PER_BLOCK * width


@inlined
def store_token(row, position, head, x, key, y, value, width, is_narrow):
    """Write the key x[key : key + width] and the value y[value : value + width] of a token to its block."""
    at = index_of(row, position, head, width)
    write_numbers(x, key, width, row.keys, at, is_narrow)
    write_numbers(y, value, width, row.values, at, is_narrow)


@merged
def attend(row, position, head, window, x, query, width, out, at, is_narrow):
    """softmax(q K' / sqrt(E)) V of the query x[query : query + width], written to out[at : at + width]."""
    start = max(0, position + 1 - window) if window > 0 else 0
    first, end, whole = start // LANES * LANES, position + 1, width // LANES * LANES
    memory = np.empty((end - first + LANES - 1) // LANES * LANES, np.float32)
    weights, count = memory.ctypes.data, len(memory)  # weights of positions first, first + 1, ...
    scale = np.float32(1 / np.sqrt(width))
    for i in range(0, count, LANES):
        cached = index_of(row, first + i, head, width)
        prefetch_cached(row.values, cached, LANES * width, is_narrow)
        scores = v.multiply(v.broadcast(scale), dots(x, query, row.keys, cached, width, whole, is_narrow))
        v.store_float(weights, i, scores)
        for lane in range(LANES if whole < width else 0):
            score = v.read_float(weights, i + lane)
            for e in range(whole, width):
                key = read_number(row.keys, cached + lane * width + e, is_narrow)
                score += scale * v.read_float(x, query + e) * key
            v.write_float(weights, i + lane, score)
    for i in range(start - first):
        v.write_float(weights, i, -np.inf)
    for i in range(end - first, count):
        v.write_float(weights, i, -np.inf)
    total = softmax_weights(weights, count)
    fours = whole // (4 * LANES) * (4 * LANES)
    for e in range(0, fours, 4 * LANES):
        mix(row, start, end, head, width, e, weights, out, at, is_narrow, FOUR)
    for e in range(fours, whole, LANES):
        mix(row, start, end, head, width, e, weights, out, at, is_narrow, SINGLE)
    for e in range(0, whole, LANES):
        mixed = v.divide(v.load_float(out, at + e), v.broadcast(total))
        v.store_float(out, at + e, rounded(mixed, is_narrow))
    for e in range(whole, width):
        element = np.float32(0)
        for i in range(start, end):
            cached = index_of(row, i, head, width)
            element += v.read_float(weights, i - first) * read_number(row.values, cached + e, is_narrow)
        v.write_float(out, at + e, rounded_number(element / total, is_narrow))
    keep(memory)


@inlined
def prefetch_cached(address, first, count, is_narrow):
    words, length = (first // 2, count // 2) if is_narrow else (first, count)
    for i in range(words, words + length, LANES):
        v.prefetch(address, i)


@inlined
def dots(x, query, address, cached, width, whole, is_narrow):
    """The dot products of x[query : query + whole] with 16 consecutive cached vectors of `width`."""
    sums = v.zeros(SIXTEEN)
    for e in range(0, whole, LANES):
        sums = add_cached(sums, v.load_float(x, query + e), address, cached + e, width, is_narrow)
    return v.reduce_rows(sums)


@inlined
def add_cached(sums, x, address, first, stride, is_narrow):
    """Add x times the cached vectors of 16 numbers that begin at first, first + stride, ..."""
    if is_narrow:
        return v.fma(x, v.load_bfloat16(address, v.indices(sums, first, stride)), sums)
    return v.fma(x, v.load_float(address, v.indices(sums, first, stride)), sums)


@inlined
def softmax_weights(weights, count):
    """Replace scores by the exponentials of their differences from the largest; returns the sum."""
    highest = v.load_float(weights, 0)
    for i in range(LANES, count, LANES):
        highest = v.maximum(highest, v.load_float(weights, i))
    shift, sums = v.broadcast(v.reduce_max(highest)), v.broadcast(0.0)
    for i in range(0, count, LANES):
        weight = exponential(v.subtract(v.load_float(weights, i), shift))
        v.store_float(weights, i, weight)
        sums = v.add(sums, weight)
    return v.reduce_add(sums)


@inlined
def mix(row, start, end, head, width, e, weights, out, at, is_narrow, vectors):
    """Write `vectors` vectors, from element e on, of the weighted sum of the values at positions start, ... end - 1."""
    sums, first, position = v.zeros(vectors), start // LANES * LANES, start
    while position < end:
        stop = min(end, (position // POSITIONS_PER_BLOCK + 1) * POSITIONS_PER_BLOCK)
        cached = index_of(row, position, head, width) + e
        for i in range(stop - position):
            weight = v.broadcast_at(weights, position - first + i)
            sums = add_cached(sums, weight, row.values, cached + i * width, LANES, is_narrow)
        position = stop
    v.store_float(out, v.indices(sums, at + e, LANES), sums)

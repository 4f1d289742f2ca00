"""Attention of single queries over the blocks of a paged cache, which is read where it lies.

Every new token is a query of its own: it sees the positions of its row up to its own, within the window. Its value
does not depend on the other rows, nor on how the tokens of its row were divided into passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretell.model.kernels import numba_rows as r
from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.compiling import compiled, inlined
from foretell.model.kernels.numba_math import exponential, round_vector
from foretell.model.kernels.numba_numbers import write_numbers
from foretell.model.kernels.numba_scalars import read_float, read_index, read_number, rounded, write_float
from foretell.model.paged_cache import POSITIONS_PER_BLOCK

LANES = v.LANES  # scores of so many positions are computed at once; blocks of the cache have a multiple of it
SIXTEEN, FOUR, SINGLE = (0,) * 16, (0,) * 4, (0,)  # vectors that are held in registers
assert POSITIONS_PER_BLOCK % LANES == 0


class CacheView(NamedTuple):
    """One layer of a paged cache: the addresses of its keys and values (G, N, P, E), and their strides in numbers."""

    keys: int
    values: int
    head_stride: int
    block_stride: int


@inlined
def place_of(cache, table, position, head, width):
    """Index of the first element of a position's key or value; `table` is an address of int32."""
    block = np.int64(read_index(table, position // POSITIONS_PER_BLOCK))
    return head * cache.head_stride + block * cache.block_stride + position % POSITIONS_PER_BLOCK * width


@compiled
def store_token(cache, table, position, head, x, key, value, width, is_narrow):
    """Write the key x[key : key + width] and the value x[value : value + width] of a token to its block."""
    at = place_of(cache, table, position, head, width)
    write_numbers(x, key, width, cache.keys, at, is_narrow)
    write_numbers(x, value, width, cache.values, at, is_narrow)


@compiled
def attend(cache, table, position, head, window, x, query, width, out, at, is_narrow):
    """softmax(q K' / sqrt(E)) V of the query x[query : query + width], written to out[at : at + width]."""
    start = max(0, position + 1 - window) if window > 0 else 0
    first, end, whole = start // LANES * LANES, position + 1, width // LANES * LANES
    weights = np.empty((end - first + LANES - 1) // LANES * LANES, np.float32)  # of positions first, first + 1, ...
    scale = np.float32(1 / np.sqrt(width))
    for i in range(0, len(weights), LANES):
        place = place_of(cache, table, first + i, head, width)
        prefetch_cached(cache.values, place, LANES * width, is_narrow)
        v.store(weights, i, v.multiply(v.full(scale), dots(x, query, cache.keys, place, width, whole, is_narrow)))
        for lane in range(LANES if whole < width else 0):
            for e in range(whole, width):
                key = read_number(cache.keys, place + lane * width + e, is_narrow)
                weights[i + lane] += scale * read_float(x, query + e) * key
    weights[: start - first] = -np.inf
    weights[end - first :] = -np.inf
    total = softmax_weights(weights)
    e = 0
    while e + 4 * LANES <= whole:
        mix(cache, table, start, end, head, width, e, weights, out, at, is_narrow, FOUR)
        e += 4 * LANES
    while e < whole:
        mix(cache, table, start, end, head, width, e, weights, out, at, is_narrow, SINGLE)
        e += LANES
    for e in range(0, whole, LANES):
        v.store(out, at + e, round_vector(v.divide(v.load_floats(out, at + e), v.full(total)), is_narrow))
    for e in range(whole, width):
        element = np.float32(0)
        for position in range(start, end):
            place = place_of(cache, table, position, head, width)
            element += weights[position - first] * read_number(cache.values, place + e, is_narrow)
        write_float(out, at + e, rounded(element / total) if is_narrow else element / total)


@inlined
def prefetch_cached(address, first, count, is_narrow):
    """Ask for so many numbers of the cache."""
    words, length = (first // 2, count // 2) if is_narrow else (first, count)
    for i in range(words, words + length, LANES):
        v.prefetch(address, i)


@inlined
def dots(x, query, address, place, width, whole, is_narrow):
    """The products of x[query : query + whole] and of 16 cached vectors of `width` that follow each other."""
    sums = r.zeros(SIXTEEN)
    for e in range(0, whole, LANES):
        sums = add_cached(sums, v.load_floats(x, query + e), address, place + e, width, is_narrow)
    return r.sum_lanes(sums)


@inlined
def add_cached(sums, x, address, first, stride, is_narrow):
    """Add x times the vectors of 16 numbers of the cache that begin at first, first + stride, ..."""
    if is_narrow:
        return r.fma_bfloat16(sums, x, address, first, stride)
    return r.fma_floats(sums, x, address, first, stride)


@inlined
def softmax_weights(weights):
    """Exponentials of scores less the largest one, in place; returns their sum."""
    highest = v.load_floats(weights, 0)
    for i in range(16, len(weights), 16):
        highest = v.larger(highest, v.load_floats(weights, i))
    shift, sums = v.full(v.largest_lane(highest)), v.full(np.float32(0))
    for i in range(0, len(weights), 16):
        weight = exponential(v.subtract(v.load_floats(weights, i), shift))
        v.store(weights, i, weight)
        sums = v.add(sums, weight)
    return v.sum_lanes(sums)


@inlined
def mix(cache, table, start, end, head, width, e, weights, out, at, is_narrow, vectors):
    """Write the weighted sum of the values of positions start, ... end - 1, from element e as many vectors as given."""
    sums, first, position = r.zeros(vectors), start // LANES * LANES, start
    while position < end:
        stop = min(end, (position // POSITIONS_PER_BLOCK + 1) * POSITIONS_PER_BLOCK)
        place = place_of(cache, table, position, head, width) + e
        for i in range(stop - position):
            weight = v.full(weights[position - first + i])
            sums = add_cached(sums, weight, cache.values, place + i * width, LANES, is_narrow)
        position = stop
    r.store(out, at + e, LANES, sums, v.full(np.float32(0)))

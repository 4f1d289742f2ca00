"""Attention of single queries over the blocks of a paged cache, which is read where it lies.

Every new token is a query of its own: it sees the positions of its row up to its own, within the window. Its value
does not depend on the other rows, nor on how the tokens of its row were divided into passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.compiling import compiled, inlined
from foretell.model.kernels.numba_math import exponential, round_vector
from foretell.model.kernels.numba_scalars import (
    narrow,
    read_float,
    read_index,
    read_number,
    rounded,
    write_float,
    write_half,
)
from foretell.model.paged_cache import POSITIONS_PER_BLOCK


class CacheView(NamedTuple):
    """One layer of a paged cache: the addresses of its keys and values (G, N, P, E), and their strides in numbers."""

    keys: int
    values: int
    head_stride: int
    block_stride: int


@inlined
def place_of(cache, table, position, head, width):
    """The number of the element at which the key or value of a position begins; `table` is an address of int32."""
    block = np.int64(read_index(table, position // POSITIONS_PER_BLOCK))
    return head * cache.head_stride + block * cache.block_stride + position % POSITIONS_PER_BLOCK * width


@inlined
def load_cached(address, index, is_narrow):
    """16 numbers of the cache as float32."""
    return v.load_bfloat16(address, index) if is_narrow else v.load_floats(address, index)


@compiled
def store_token(cache, block, position, head, x, key, value, width, is_narrow):
    """Write the key x[key : key + width] and the value x[value : value + width] of a token to its block."""
    at = head * cache.head_stride + block * cache.block_stride + position % POSITIONS_PER_BLOCK * width
    for i in range(width):
        if is_narrow:
            write_half(cache.keys, at + i, narrow(read_float(x, key + i)))
            write_half(cache.values, at + i, narrow(read_float(x, value + i)))
        else:
            write_float(cache.keys, at + i, read_float(x, key + i))
            write_float(cache.values, at + i, read_float(x, value + i))


@compiled
def attend(cache, table, position, head, window, x, query, width, out, at, is_narrow):
    """softmax(q K' / sqrt(E)) V of the query x[query : query + width], written to out[at : at + width]."""
    start = max(0, position + 1 - window) if window > 0 else 0
    count = position + 1 - start
    weights = np.full((count + 15) // 16 * 16, -np.inf, np.float32)
    scale = np.float32(1 / np.sqrt(width))
    for i in range(count):
        place = place_of(cache, table, start + i, head, width)
        weights[i] = scale * dot(x, query, cache.keys, place, width, is_narrow)
    total = softmax_weights(weights)
    whole = width // 16 * 16
    for e in range(0, whole, 16):
        mixed = mix(cache, table, start, count, head, width, e, weights, is_narrow)
        v.store(out, at + e, round_vector(v.divide(mixed, v.full(total)), is_narrow))
    for e in range(whole, width):
        element = np.float32(0)
        for i in range(count):
            place = place_of(cache, table, start + i, head, width)
            element += weights[i] * read_number(cache.values, place + e, is_narrow)
        write_float(out, at + e, rounded(element / total) if is_narrow else element / total)


@inlined
def dot(x, first, address, place, width, is_narrow):
    """The product of x[first : first + width] and a cached vector."""
    sums, total = v.full(np.float32(0)), np.float32(0)
    whole = width // 16 * 16
    for e in range(0, whole, 16):
        sums = v.fma(v.load_floats(x, first + e), load_cached(address, place + e, is_narrow), sums)
    for e in range(whole, width):
        total += read_float(x, first + e) * read_number(address, place + e, is_narrow)
    return v.sum_lanes(sums) + total


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
def mix(cache, table, start, count, head, width, e, weights, is_narrow):
    """Elements e, ... e + 15 of the weighted sum of values: even and odd positions apart, then together."""
    even, odd = v.full(np.float32(0)), v.full(np.float32(0))
    for i in range(0, count - 1, 2):
        one = place_of(cache, table, start + i, head, width) + e
        two = place_of(cache, table, start + i + 1, head, width) + e
        even = v.fma(v.full(weights[i]), load_cached(cache.values, one, is_narrow), even)
        odd = v.fma(v.full(weights[i + 1]), load_cached(cache.values, two, is_narrow), odd)
    if count % 2 == 1:
        last = place_of(cache, table, start + count - 1, head, width) + e
        even = v.fma(v.full(weights[count - 1]), load_cached(cache.values, last, is_narrow), even)
    return v.add(even, odd)

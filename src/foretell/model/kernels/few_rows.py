"""Matrix products of few rows with packed weights, in float32: x (M, K) times weights (N, K) to (M, N).

A value is computed by the same operations in the same order with any other rows and outputs: two sums, over the inputs
with even and with odd numbers, per group of inputs where weights have scales.
"""

from __future__ import annotations

import numpy as np

from foretell.model.kernels import numba_rows as r
from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.compiling import HAS_AVX512, inlined

ROWS = 8 if HAS_AVX512 else 2  # rows at once: two sums each must fit the 32, or 8, vectors that registers hold
AHEAD = 512  # words between the weights that are read and those that are prefetched
ONE = np.uint32(0x3F800000)  # 1.0 in float32
NIBBLE = np.uint32(0x00780000)  # the first four bits of the mantissa
UPPER = np.uint32(0xFFFF0000)

MANY, FOUR, TWO, SINGLE = (0,) * ROWS, (0,) * 4, (0,) * 2, (0,)


@inlined
def float32_sums(words, start, factors, factor, inputs, group, x, first, stride, totals, total, rows):
    """Sums of a tile of float32 weights."""
    even, odd = r.zeros(rows), r.zeros(rows)
    for k in range(0, inputs, 2):
        at = start + k * 16
        v.prefetch(words, at + AHEAD)
        even = r.fma(even, v.load_floats(words, at), x, first + k, stride)
        v.prefetch(words, at + AHEAD + 16)
        odd = r.fma(odd, v.load_floats(words, at + 16), x, first + k + 1, stride)
    return r.add(even, odd)


@inlined
def bfloat16_sums(words, start, factors, factor, inputs, group, x, first, stride, totals, total, rows):
    """Sums of a tile of bfloat16 weights, which are the upper halves of float32 numbers."""
    even, odd = r.zeros(rows), r.zeros(rows)
    upper = v.full_words(UPPER)
    for k in range(0, inputs, 2):
        at = start + k * 8
        v.prefetch(words, at + AHEAD)
        pair = v.load_words(words, at)
        even = r.fma(even, v.as_floats(v.shift_left(pair, 16)), x, first + k, stride)
        odd = r.fma(odd, v.as_floats(v.both(pair, upper)), x, first + k + 1, stride)
    return r.add(even, odd)


@inlined
def int8_sums(words, start, factors, factor, inputs, group, x, first, stride, totals, total, rows):
    """Sums of a tile of int8 weights: each group's sum times its scale."""
    sums = r.zeros(rows)
    for begin in range(0, inputs, group):
        even, odd = r.zeros(rows), r.zeros(rows)
        for k in range(begin, begin + group, 4):
            at = start + k * 4
            v.prefetch(words, at + AHEAD)
            four = v.load_words(words, at)
            x0 = first + k
            even = r.fma(even, signed_byte(v.shift_left(four, 24)), x, x0, stride)
            odd = r.fma(odd, signed_byte(v.shift_left(four, 16)), x, x0 + 1, stride)
            even = r.fma(even, signed_byte(v.shift_left(four, 8)), x, x0 + 2, stride)
            odd = r.fma(odd, signed_byte(four), x, x0 + 3, stride)
        sums = r.scale(sums, r.add(even, odd), v.load_bfloat16(factors, factor))
        factor += 16
    return sums


@inlined
def signed_byte(shifted):
    """The integers in the highest byte of each word."""
    return v.to_floats(v.shift_right_signed(shifted, 24))


@inlined
def int4_sums(words, start, factors, factor, inputs, group, x, first, stride, totals, total, rows):
    """Sums of a tile of int4 weights: each group's sum times its scale and the sum of its inputs times its minimum."""
    sums = r.zeros(rows)
    nibble, one = v.full_words(NIBBLE), v.full_words(ONE)
    for begin in range(0, inputs, group):
        even, odd = r.zeros(rows), r.zeros(rows)
        for k in range(begin, begin + group, 8):
            at = start + k * 2
            v.prefetch(words, at + AHEAD)
            eight = v.load_words(words, at)
            x0 = first + k
            even = r.fma(even, mantissa(v.shift_left(eight, 19), nibble, one), x, x0, stride)
            odd = r.fma(odd, mantissa(v.shift_left(eight, 11), nibble, one), x, x0 + 1, stride)
            even = r.fma(even, mantissa(v.shift_left(eight, 3), nibble, one), x, x0 + 2, stride)
            odd = r.fma(odd, mantissa(v.shift_right(eight, 5), nibble, one), x, x0 + 3, stride)
            even = r.fma(even, mantissa(v.shift_left(eight, 15), nibble, one), x, x0 + 4, stride)
            odd = r.fma(odd, mantissa(v.shift_left(eight, 7), nibble, one), x, x0 + 5, stride)
            even = r.fma(even, mantissa(v.shift_right(eight, 1), nibble, one), x, x0 + 6, stride)
            odd = r.fma(odd, mantissa(v.shift_right(eight, 9), nibble, one), x, x0 + 7, stride)
        scales, minima = int4_factors(factors, factor)
        sums = r.scale(sums, r.add(even, odd), scales)
        sums = r.fma(sums, minima, totals, total, inputs // group)
        total += 1
        factor += 32
    return sums


@inlined
def mantissa(shifted, nibble, one):
    """1 + integer / 16, from words with the integer's bits at the head of the mantissa."""
    return v.as_floats(v.either(v.both(shifted, nibble), one))


@inlined
def int4_factors(factors, at):
    """What a group's sum and the sum of its inputs are multiplied by, for weights that are read as 1 + integer / 16."""
    scales = v.multiply(v.load_bfloat16(factors, at), v.full(np.float32(16)))
    return scales, v.subtract(v.load_bfloat16(factors, at + 16), scales)


@inlined
def multiply_tiles(sums, bits, words, factors, bias, inputs, group, x, totals, M, out, N, first, last):
    """The outputs of tiles first, ... last - 1 for all rows: x (M, K) to out (M, N). `sums` is one of the above."""
    for tile in range(first, last):
        row = 0
        while row + ROWS <= M:
            multiply_rows(sums, bits, words, factors, bias, inputs, group, x, totals, row, out, N, tile, MANY)
            row += ROWS
        if ROWS > 4 and row + 4 <= M:
            multiply_rows(sums, bits, words, factors, bias, inputs, group, x, totals, row, out, N, tile, FOUR)
            row += 4
        if ROWS > 2 and row + 2 <= M:
            multiply_rows(sums, bits, words, factors, bias, inputs, group, x, totals, row, out, N, tile, TWO)
            row += 2
        if row < M:
            multiply_rows(sums, bits, words, factors, bias, inputs, group, x, totals, row, out, N, tile, SINGLE)


@inlined
def multiply_rows(sums, bits, words, factors, bias, inputs, group, x, totals, row, out, N, tile, rows):
    """One tile of outputs for some rows, of which `rows` has as many elements."""
    K = (inputs + 31) // 32 * 32
    groups = inputs // group
    start, factor = tile * K * bits // 2, tile * groups * (32 if bits == 4 else 16)
    result = sums(words, start, factors, factor, inputs, group, x, row * K, K, totals, row * groups, rows)
    r.store(out, row * N + tile * 16, N, result, v.load_floats(bias, tile * 16))


def float32_tiles(words, factors, bias, inputs, group, x, totals, P, M, out, N, first, last):
    """The kernel of float32 weights."""
    multiply_tiles(float32_sums, 32, words, factors, bias, inputs, group, x, totals, M, out, N, first, last)


def bfloat16_tiles(words, factors, bias, inputs, group, x, totals, P, M, out, N, first, last):
    """The kernel of bfloat16 weights."""
    multiply_tiles(bfloat16_sums, 16, words, factors, bias, inputs, group, x, totals, M, out, N, first, last)


def int8_tiles(words, factors, bias, inputs, group, x, totals, P, M, out, N, first, last):
    """The kernel of int8 weights."""
    multiply_tiles(int8_sums, 8, words, factors, bias, inputs, group, x, totals, M, out, N, first, last)


def int4_tiles(words, factors, bias, inputs, group, x, totals, P, M, out, N, first, last):
    """The kernel of int4 weights."""
    multiply_tiles(int4_sums, 4, words, factors, bias, inputs, group, x, totals, M, out, N, first, last)


KERNELS = {32: float32_tiles, 16: bfloat16_tiles, 8: int8_tiles, 4: int4_tiles}

"""Matrix products of few rows with vector instructions: x (M, K) times packed weights (N, K) to (M, N), in float32.

The operations for a value, and their order, do not depend on the other rows and outputs. Weights in float32 and
bfloat16, and integers on processors without AVX2, are multiplied in float32, with one sum over the even inputs and
one over the odd inputs (per group, if weights have scales).
"""

from __future__ import annotations

from typing import NamedTuple

from foretell.model.kernels import vectors as v
from foretell.model.kernels.compiling import inlined, merged
from foretell.model.kernels.packing import num_planes, padded_inputs, padded_outputs, scales_of, sums_of

ROWS = 8 if v.HAS_AVX512 else 2  # rows at once: two sums each must fit into registers for 32, or 8, vectors
AHEAD = 512  # prefetch distance, in words
ONE = 0x3F800000  # 1.0 in float32
NIBBLE = 0x00780000  # the first four bits of the mantissa
UPPER_HALF = 0xFFFF0000

MANY, FOUR, TWO, SINGLE = (0,) * ROWS, (0,) * 4, (0,) * 2, (0,)


class Product(NamedTuple):
    """The arguments of a kernel; all arrays are given by their addresses."""

    bits: int
    words: int
    factors: int
    bias: int
    inputs: int
    group: int
    x: int  # the activations (M, K), or their P planes
    scales: int  # scales of the activations
    sums: int  # sums of groups
    P: int
    M: int
    out: int
    N: int
    turns: int  # distance between tiles, in tiles
    factor_type: int  # one of matmul.FACTOR_TYPES
    minima: bool
    decoded: int  # a tile's weights as 16-bit integers: words of two inputs, for 16 outputs


@inlined
def make_product(bits, factor_type, minima, matrix, x, prepared, rows, is_narrow, out):
    """The product of a matrix and of activations that `prepare` has processed."""
    inputs, group, P = matrix.inputs, matrix.group, num_planes(matrix, is_narrow)
    scales = scales_of(matrix, prepared, rows, is_narrow)
    planes, sums, N = prepared if P > 0 else x, sums_of(scales, group, inputs, rows, P), padded_outputs(matrix.outputs)
    arrays = matrix.words, matrix.factors, matrix.bias
    sizes = inputs, group, planes, scales, sums, P, rows, out, N, matrix.turns
    return Product(bits, *arrays, *sizes, factor_type, minima, 0)


@inlined
def tile_start(p, tile):
    """The first word of a tile."""
    return tile * p.turns * padded_inputs(p.inputs) * p.bits // 2


@inlined
def factor_of(p, tile, group):
    """The index of the scales of a group of a tile; any minima follow them."""
    return (tile * p.turns * (p.inputs // p.group) + group) * (32 if p.minima else 16)


@inlined
def load_factors(p, index):
    """The scales or minima at an index, or at several, as float32."""
    if p.factor_type == 2:
        return v.load_bfloat16(p.factors, index)
    if p.factor_type == 1:
        return v.load_float16(p.factors, index)
    return v.load_float(p.factors, index)


@inlined
def multiply_tiles(sums, p, first, last):
    """The outputs of tiles first, ... last - 1 for all rows. `sums` is one of the functions below."""
    for tile in range(first, last):
        row = p.M // ROWS * ROWS
        for start in range(0, row, ROWS):
            multiply_rows(sums, p, tile, start, MANY)
        if ROWS > 4 and row + 4 <= p.M:
            multiply_rows(sums, p, tile, row, FOUR)
            row += 4
        if ROWS > 2 and row + 2 <= p.M:
            multiply_rows(sums, p, tile, row, TWO)
            row += 2
        if row < p.M:
            multiply_rows(sums, p, tile, row, SINGLE)


@merged
def multiply_rows(sums, p, tile, row, rows):
    """One tile of outputs for len(rows) rows."""
    outputs = v.add(sums(p, tile, row, rows), v.load_float(p.bias, tile * 16))
    v.store_float(p.out, v.indices(rows, row * p.N + tile * 16, p.N), outputs)


@inlined
def add_products(sums, weights, x, first, stride):
    """sums[r] + weights * x[first + r * stride], for every row r."""
    return v.fma(v.broadcast_at(x, v.indices(sums, first, stride)), weights, sums)


# --- sums in float32 -------------------------------------------------------------------------------------------------


@inlined
def float32_sums(p, tile, row, rows):
    K, even, odd = padded_inputs(p.inputs), v.zeros(rows), v.zeros(rows)
    start, first = tile_start(p, tile), row * K
    for k in range(0, p.inputs, 2):
        at = start + k * 16
        v.prefetch(p.words, at + AHEAD)
        even = add_products(even, v.load_float(p.words, at), p.x, first + k, K)
        v.prefetch(p.words, at + AHEAD + 16)
        odd = add_products(odd, v.load_float(p.words, at + 16), p.x, first + k + 1, K)
    return v.add(even, odd)


@inlined
def bfloat16_sums(p, tile, row, rows):
    """Sums of a tile of bfloat16 weights, which are the upper halves of float32 numbers."""
    K, even, odd = padded_inputs(p.inputs), v.zeros(rows), v.zeros(rows)
    start, first, upper = tile_start(p, tile), row * K, v.broadcast_int(UPPER_HALF)
    for k in range(0, p.inputs, 2):
        at = start + k * 8
        v.prefetch(p.words, at + AHEAD)
        pair = v.load_int(p.words, at)
        even = add_products(even, v.from_bits(v.shift_left(pair, 16)), p.x, first + k, K)
        odd = add_products(odd, v.from_bits(v.bitwise_and(pair, upper)), p.x, first + k + 1, K)
    return v.add(even, odd)


@inlined
def int8_sums(p, tile, row, rows):
    """Sums of a tile of int8 weights: each group's sum times its scale, plus its inputs' sum times any minimum."""
    K, groups, sums = padded_inputs(p.inputs), p.inputs // p.group, v.zeros(rows)
    start, first, factor, group_sum = tile_start(p, tile), row * K, factor_of(p, tile, 0), row * groups
    for begin in range(0, p.inputs, p.group):
        even, odd = v.zeros(rows), v.zeros(rows)
        for k in range(begin, begin + p.group, 4):
            at, x = start + k * 4, first + k
            v.prefetch(p.words, at + AHEAD)
            four = v.load_int(p.words, at)
            even = add_products(even, signed_byte(v.shift_left(four, 24)), p.x, x, K)
            odd = add_products(odd, signed_byte(v.shift_left(four, 16)), p.x, x + 1, K)
            even = add_products(even, signed_byte(v.shift_left(four, 8)), p.x, x + 2, K)
            odd = add_products(odd, signed_byte(four), p.x, x + 3, K)
        sums = v.fma(v.add(even, odd), load_factors(p, factor), sums)
        if p.minima:
            factor += 16
            sums = add_products(sums, load_factors(p, factor), p.sums, group_sum, groups)
        group_sum, factor = group_sum + 1, factor + 16
    return sums


@inlined
def signed_byte(shifted):
    """The integers in the highest byte of each word."""
    return v.cast_int(v.shift_right_signed(shifted, 24))


@inlined
def int4_sums(p, tile, row, rows):
    """Sums of a tile of int4 weights: each group's sum times its scale, plus its inputs' sum times its minimum."""
    K, groups, sums = padded_inputs(p.inputs), p.inputs // p.group, v.zeros(rows)
    start, first, factor, group_sum = tile_start(p, tile), row * K, factor_of(p, tile, 0), row * groups
    nibble, one = v.broadcast_int(NIBBLE), v.broadcast_int(ONE)
    for begin in range(0, p.inputs, p.group):
        even, odd = v.zeros(rows), v.zeros(rows)
        for k in range(begin, begin + p.group, 8):
            at, x = start + k * 2, first + k
            v.prefetch(p.words, at + AHEAD)
            eight = v.load_int(p.words, at)
            even = add_products(even, mantissa(v.shift_left(eight, 19), nibble, one), p.x, x, K)
            odd = add_products(odd, mantissa(v.shift_left(eight, 11), nibble, one), p.x, x + 1, K)
            even = add_products(even, mantissa(v.shift_left(eight, 3), nibble, one), p.x, x + 2, K)
            odd = add_products(odd, mantissa(v.shift_right(eight, 5), nibble, one), p.x, x + 3, K)
            even = add_products(even, mantissa(v.shift_left(eight, 15), nibble, one), p.x, x + 4, K)
            odd = add_products(odd, mantissa(v.shift_left(eight, 7), nibble, one), p.x, x + 5, K)
            even = add_products(even, mantissa(v.shift_right(eight, 1), nibble, one), p.x, x + 6, K)
            odd = add_products(odd, mantissa(v.shift_right(eight, 9), nibble, one), p.x, x + 7, K)
        # weights are read as 1 + integer / 16
        scales = v.multiply(load_factors(p, factor), v.broadcast(16.0))
        minima = v.subtract(load_factors(p, factor + 16), scales)
        sums = v.fma(v.add(even, odd), scales, sums)
        sums = add_products(sums, minima, p.sums, group_sum, groups)
        group_sum, factor = group_sum + 1, factor + 32
    return sums


@inlined
def mantissa(shifted, nibble, one):
    """1 + integer / 16, from words whose highest mantissa bits are the integer."""
    return v.from_bits(v.bitwise_or(v.bitwise_and(shifted, nibble), one))

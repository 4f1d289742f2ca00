"""Matrix products of int8 and int4 weights in exact integer arithmetic, with AVX2 or AVX-512 VNNI.

Weights are multiplied by planes of activations (packing.py); the result is bit-identical to the matrix unit's (amx.py).
The operations for a value, and their order, do not depend on the other rows and outputs.
"""

from __future__ import annotations

from foretell.model.kernels import vector_tiles as tiled
from foretell.model.kernels import vectors as v
from foretell.model.kernels.compiling import inlined, merged
from foretell.model.kernels.packing import REST, chunk_of, offsets_of
from foretell.model.kernels.vector_math import allocate, keep
from foretell.model.kernels.vector_matmul import AHEAD, FOUR, SINGLE, TWO, Product, factor_of, load_factors, tile_start

# Integer sums: tiles, rows and bytes of bfloat16 activations at once have 16, or with AVX2 8, registers of sums
TILES, PLANE_ROWS = 2 if v.HAS_VNNI else 1, 4
FEWEST_PLANES, MOST_PLANES = (2, 3) if v.HAS_VNNI else (1, 2)
MANY_ROWS = 8  # from here on, AVX2 kernels decode weights once for all rows
DECODED = 512  # inputs of a tile that are decoded at once: 16 KB
SIGN_BITS = 0x80808080
NIBBLES = 0x0F0F0F0F
NIBBLES_IN_PAIRS = 0x000F000F
TOGETHER = (0,) * TILES


@inlined
def multiply_planes(dots, p, first, last, row):
    """The outputs of tiles first, ... last - 1 for rows from `row` on; `dots` multiplies a chunk of weights."""
    for tile in range(first, last, TILES):
        at, step = row, 1 if tile + 1 < last else 0  # 0: the last tile is computed twice
        for _ in range((p.M - row) // PLANE_ROWS):
            multiply_plane_rows(dots, p, tile, step, at, FOUR)
            at += PLANE_ROWS
        if at + 2 <= p.M:
            multiply_plane_rows(dots, p, tile, step, at, TWO)
            at += 2
        if at < p.M:
            multiply_plane_rows(dots, p, tile, step, at, SINGLE)


@inlined
def multiply_decoded(decode, p, first, last):
    """Multiply most of many rows with AVX2, decoding some groups of a tile's weights at once; returns their number."""
    memory, row, groups = allocate((p.group + DECODED) * 8), p.M // PLANE_ROWS * PLANE_ROWS, p.inputs // p.group
    at_once = max(1, DECODED // p.group)
    for tile in range(first, last):
        for begin in range(0, groups, at_once):
            end, q = min(begin + at_once, groups), with_decoded(p, memory.ctypes.data - begin * p.group * 32)
            decode(q, tile, begin * p.group, end * p.group)
            for start in range(0, row, PLANE_ROWS):
                add_decoded_rows(q, tile, start, begin, end)
    keep(memory)
    return row


@inlined
def with_decoded(p, decoded):
    """A copy of the product with memory for decoded weights."""
    sizes = p.inputs, p.group, p.x, p.scales, p.sums, p.P, p.M, p.out, p.N, p.turns
    return Product(p.bits, p.words, p.factors, p.bias, *sizes, p.factor_type, p.minima, decoded)


@merged
def multiply_plane_rows(dots, p, tile, step, row, rows):
    """Some tiles of outputs for len(rows) rows. The next tile is `step` tiles away."""
    tiles = v.indices(TOGETHER, tile * 16, step * 16)
    places = tiled.outer_index(tiles, v.indices(rows, row * p.N, p.N))
    sums = plane_sums(dots, p, tile, step, row, rows, 0, p.inputs // p.group, v.zeros(places))
    v.store_float(p.out, places, tiled.add_first(sums, v.load_float(p.bias, tiles), rows))


@merged
def add_decoded_rows(p, tile, row, begin, end):
    """Add groups begin, ... end - 1 of a decoded tile to the outputs of four rows; after the last group, the bias."""
    tiles = v.indices(TOGETHER, tile * 16, 0)
    places = tiled.outer_index(tiles, v.indices(FOUR, row * p.N, p.N))
    sums = v.zeros(places) if begin == 0 else v.load_float(p.out, places)
    sums = plane_sums(decoded_dots, p, tile, 0, row, FOUR, begin, end, sums)
    if end == p.inputs // p.group:
        sums = tiled.add_first(sums, v.load_float(p.bias, tiles), FOUR)
    v.store_float(p.out, places, sums)


@merged
def plane_sums(dots, p, tile, step, row, rows, begin, end, sums):
    """Sums of tiles with any number of planes."""
    if p.P == FEWEST_PLANES:
        return sums_over_planes(
            dots, p, tile, step, row, rows, begin, end, sums, tiled.zero_planes(rows, FEWEST_PLANES)
        )
    return sums_over_planes(dots, p, tile, step, row, rows, begin, end, sums, tiled.zero_planes(rows, MOST_PLANES))


@merged
def sums_over_planes(dots, p, tile, step, row, rows, begin, end, sums, planes):
    """Add groups begin, ... end - 1 of tiles to `sums`; `planes` has a vector for each plane of each row."""
    groups, chunk = p.inputs // p.group, chunk_of(p.group)
    chunks, per_group, ratio = p.inputs // chunk, p.group // chunk, v.broadcast(1 / REST)
    start, stride, words = tile_start(p, tile), step * tile_start(p, 1), chunk * p.bits // 2
    factor, apart = factor_of(p, tile, begin), step * factor_of(p, 1, 0)
    for group in range(begin, end):  # two loops, because dividing by the chunks per group took longer than the products
        scales = load_factors(p, v.indices(TOGETHER, factor, apart))
        for index in range(group * per_group, (group + 1) * per_group):
            integers = dots(planes, p, row, index, chunk, start + index * words, stride)
            activation_scales = v.broadcast_at(p.scales, v.indices(rows, row * chunks + index, chunks))
            parts = tiled.join_planes(sums, integers, ratio)
            sums = v.fma(parts, tiled.outer_multiply(scales, activation_scales), sums)
        if p.minima:
            minima = load_factors(p, v.indices(TOGETHER, factor + 16, apart))
            group_sums = v.broadcast_at(p.sums, v.indices(rows, row * groups + group, groups))
            sums = tiled.fma_outer(sums, minima, group_sums)
            factor += 16
        factor += 16
    return sums


@inlined
def load_words(p, at, stride):
    """Load the words of several tiles, and prefetch later ones."""
    v.prefetch(p.words, v.indices(TOGETHER, at + AHEAD, stride))
    return v.load_int(p.words, v.indices(TOGETHER, at, stride))


@inlined
def int8_dots(planes, p, row, index, chunk, at, stride):
    """The sums of a chunk of int8 weights for all planes, with VNNI.

    VNNI reads weights as unsigned bytes, so they are increased by 128; the offsets compensate for that.
    """
    signs, chunks, width = v.broadcast_int(SIGN_BITS), p.inputs // chunk, p.inputs // 4
    offsets, first = offsets_of(p.scales, p.group, p.inputs, p.M), (row * p.P * p.inputs + index * chunk) // 4
    starts = v.broadcast_int_at(offsets, v.indices(planes, row * p.P * chunks + index, chunks))
    sums = tiled.outer_repeat(TOGETHER, starts)
    for i in range(chunk // 4):
        weights, x = load_words(p, at + i * 16, stride), v.broadcast_int_at(p.x, v.indices(planes, first + i, width))
        sums = tiled.dot_outer(sums, v.bitwise_xor(weights, signs), x)
    return sums


@inlined
def int4_dots(planes, p, row, index, chunk, at, stride):
    """The sums of a chunk of int4 weights for all planes, with VNNI."""
    sums, nibbles, width = tiled.outer_repeat(TOGETHER, planes), v.broadcast_int(NIBBLES), p.inputs // 4
    first = (row * p.P * p.inputs + index * chunk) // 4
    for i in range(chunk // 8):
        weights = load_words(p, at + i * 16, stride)
        x = v.broadcast_int_at(p.x, v.indices(planes, first + i * 2, width))
        sums = tiled.dot_outer(sums, v.bitwise_and(weights, nibbles), x)
        x = v.broadcast_int_at(p.x, v.indices(planes, first + i * 2 + 1, width))
        sums = tiled.dot_outer(sums, v.bitwise_and(v.shift_right(weights, 4), nibbles), x)
    return sums


@inlined
def int8_pair_dots(planes, p, row, index, chunk, at, stride):
    """The sums of a chunk of int8 weights for all planes, with AVX2."""
    sums, first = tiled.outer_repeat(TOGETHER, planes), first_pair(p, row, index, chunk)
    for i in range(chunk // 4):
        weights = load_words(p, at + i * 16, stride)
        sums = add_pairs(sums, p, planes, even_bytes(weights), first + i * 2)
        sums = add_pairs(sums, p, planes, odd_bytes(weights), first + i * 2 + 1)
    return sums


@inlined
def int4_pair_dots(planes, p, row, index, chunk, at, stride):
    """The sums of a chunk of int4 weights for all planes, with AVX2."""
    sums, first = tiled.outer_repeat(TOGETHER, planes), first_pair(p, row, index, chunk)
    for i in range(chunk // 8):
        weights = load_words(p, at + i * 16, stride)
        sums = add_pairs(sums, p, planes, nibbles_in_pairs(weights), first + i * 4)
        sums = add_pairs(sums, p, planes, nibbles_in_pairs(v.shift_right(weights, 8)), first + i * 4 + 1)
        sums = add_pairs(sums, p, planes, nibbles_in_pairs(v.shift_right(weights, 4)), first + i * 4 + 2)
        sums = add_pairs(sums, p, planes, nibbles_in_pairs(v.shift_right(weights, 12)), first + i * 4 + 3)
    return sums


@inlined
def decoded_dots(planes, p, row, index, chunk, at, stride):
    """The sums of a chunk of decoded weights for all planes, with AVX2."""
    sums, first = tiled.outer_repeat(TOGETHER, planes), first_pair(p, row, index, chunk)
    start = p.decoded + index * chunk * 32
    for pair in range(chunk // 2):
        sums = add_pairs(sums, p, planes, v.load_int(start, v.indices(TOGETHER, pair * 16, 0)), first + pair)
    return sums


@inlined
def first_pair(p, row, index, chunk):
    """The first pair of activations of a chunk in the first plane of a row."""
    return (row * p.P * p.inputs + index * chunk) // 2


@inlined
def add_pairs(sums, p, planes, weights, pair):
    """Add the products of a pair of inputs to the sums, for all rows and planes."""
    return tiled.pair_dot_outer(sums, weights, v.broadcast_int_at(p.x, v.indices(planes, pair, p.inputs // 2)))


@inlined
def even_bytes(words):
    """The first and the third byte of words as integers of 16 bits."""
    return v.shift_halves_right(v.shift_halves_left(words, 8), 8)


@inlined
def odd_bytes(words):
    """The second and the fourth byte of words as integers of 16 bits."""
    return v.shift_halves_right(words, 8)


@inlined
def nibbles_in_pairs(words):
    """The lowest four bits of the first and the third byte of words as integers of 16 bits."""
    return v.bitwise_and(words, v.broadcast_int(NIBBLES_IN_PAIRS))


@inlined
def decode_int8(p, tile, first, last):
    """Write the decoded weights of a tile for inputs first, ... last - 1."""
    start = tile_start(p, tile)
    for i in range(first // 4, last // 4):
        weights = v.load_int(p.words, start + i * 16)
        v.prefetch(p.words, start + i * 16 + AHEAD)
        v.store_int(p.decoded, i * 32, even_bytes(weights))
        v.store_int(p.decoded, i * 32 + 16, odd_bytes(weights))


@inlined
def decode_int4(p, tile, first, last):
    """Write the decoded weights of a tile for inputs first, ... last - 1."""
    start = tile_start(p, tile)
    for i in range(first // 8, last // 8):
        weights = v.load_int(p.words, start + i * 16)
        v.prefetch(p.words, start + i * 16 + AHEAD)
        v.store_int(p.decoded, i * 64, nibbles_in_pairs(weights))
        v.store_int(p.decoded, i * 64 + 16, nibbles_in_pairs(v.shift_right(weights, 8)))
        v.store_int(p.decoded, i * 64 + 32, nibbles_in_pairs(v.shift_right(weights, 4)))
        v.store_int(p.decoded, i * 64 + 48, nibbles_in_pairs(v.shift_right(weights, 12)))


int8_products, int4_products = (int8_dots, int4_dots) if v.HAS_VNNI else (int8_pair_dots, int4_pair_dots)

"""What a block does to rows of its stream, one at a time: norms, rotations, activations and residuals.

Arrays of float32 are given by their addresses, with rows padded to a multiple of 32 numbers. In a model in bfloat16 a
value is rounded where the plain module returns it; between these places it is in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.compiling import compiled, inlined
from foretell.model.kernels.numba_math import activate, round_vector
from foretell.model.kernels.numba_scalars import read_float, rounded, write_float


class NormView(NamedTuple):
    """A norm (0: none, 1: LayerNorm, 2: RMSNorm) with the addresses of its scale and shift (0: none), in float32."""

    kind: int
    scale: int
    shift: int
    epsilon: float


@inlined
def squares(x, first, width, mean):
    """The sum of (x[first + i] - mean)^2 for i < width."""
    center, sums, total = v.full(mean), v.full(np.float32(0)), np.float32(0)
    whole = width // 16 * 16
    for i in range(0, whole, 16):
        difference = v.subtract(v.load_floats(x, first + i), center)
        sums = v.fma(difference, difference, sums)
    for i in range(whole, width):
        total += (read_float(x, first + i) - mean) * (read_float(x, first + i) - mean)
    return v.sum_lanes(sums) + total


@inlined
def row_sum(x, first, width):
    """The sum of x[first + i] for i < width."""
    sums, total = v.full(np.float32(0)), np.float32(0)
    whole = width // 16 * 16
    for i in range(0, whole, 16):
        sums = v.add(sums, v.load_floats(x, first + i))
    for i in range(whole, width):
        total += read_float(x, first + i)
    return v.sum_lanes(sums) + total


@compiled
def normalise(norm, x, first, out, at, width, is_narrow):
    """Write the norm of x[first : first + width] to out[at : at + width]; the two may be the same."""
    mean, inverse = np.float32(0), np.float32(1)
    if norm.kind == 1:
        mean = row_sum(x, first, width) / np.float32(width)
    if norm.kind != 0:
        variance = squares(x, first, width, mean) / np.float32(width)
        inverse = np.float32(1) / np.sqrt(variance + np.float32(norm.epsilon))
    for i in range(width):
        value = (read_float(x, first + i) - mean) * inverse
        if norm.scale != 0:
            value *= read_float(norm.scale, i)
        if norm.shift != 0:
            value += read_float(norm.shift, i)
        write_float(out, at + i, rounded(value) if is_narrow else value)


@compiled
def rotate(x, first, width, cosine, sine, angle, is_narrow):
    """Rotate a head in place: pair i is made of the elements i and i + width / 2. Its first angle is number `angle`."""
    half = width // 2
    for i in range(half):
        c, s = read_float(cosine, angle + i), read_float(sine, angle + i)
        one, two = read_float(x, first + i), read_float(x, first + half + i)
        if is_narrow:
            c, s = rounded(c), rounded(s)
            write_float(x, first + i, rounded(rounded(one * c) - rounded(two * s)))
            write_float(x, first + half + i, rounded(rounded(two * c) + rounded(one * s)))
        else:
            write_float(x, first + i, one * c - two * s)
            write_float(x, first + half + i, two * c + one * s)


@compiled
def round_row(x, first, width, is_narrow):
    """Round a row in place to bfloat16, where `is_narrow`; a multiple of 16 numbers."""
    for i in range(first, first + width if is_narrow else first, 16):
        v.store(x, i, round_vector(v.load_floats(x, i), True))


@compiled
def add_update(stream, width, update, columns, has_residual, rows, first, last, is_narrow):
    """Add columns first, ... last - 1 of an update to the stream, or put them in its place; multiples of 16."""
    for row in range(rows):
        for i in range(first, last, 16):
            new = round_vector(v.load_floats(update, row * columns + i), is_narrow)
            if has_residual:
                new = round_vector(v.add(v.load_floats(stream, row * width + i), new), is_narrow)
            v.store(stream, row * width + i, new)


@compiled
def activate_tiles(inner, columns, hidden, width, rows, first, last, kind, is_gated, is_narrow):
    """Activate tiles first, ... last - 1 of 16 inner values; gated: the tile of the gates comes before each of them."""
    for row in range(rows):
        for tile in range(first, last):
            at = row * columns + tile * (32 if is_gated else 16)
            value = activate(round_vector(v.load_floats(inner, at), is_narrow), kind)
            value = round_vector(value, is_narrow)
            if is_gated:
                up = round_vector(v.load_floats(inner, at + 16), is_narrow)
                value = round_vector(v.multiply(value, up), is_narrow)
            v.store(hidden, row * width + tile * 16, value)

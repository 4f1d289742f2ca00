"""Exponential, activations and model dtypes on vectors of 16 lanes, for kernels in numba."""

from __future__ import annotations

import numpy as np

from foretell.model.kernels import vectors as v
from foretell.model.kernels.compiling import compiled, inlined

LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has few bits, so its products with integers below 2^8 are exact
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
MAGIC = 1.5 * 2**23  # adding it rounds to an integer, which is then in the lowest bits
ONE_BITS = 0x3F800000
SIGN_BIT = 0x80000000
GELU = 2 * 0.7978845608028654  # 2 sqrt(2 / pi)
ACTIVATIONS = {"gelu_tanh": 0, "gelu_erf": 1, "relu": 2, "relu2": 3, "silu": 4}


@inlined
def exponential(x):
    """e^x for x clipped to [-87, 88]: 2^n times a Taylor polynomial of degree 7 of the rest."""
    x = v.minimum(v.maximum(x, v.broadcast(-87.0)), v.broadcast(88.0))
    shifted = v.fma(x, v.broadcast(LOG2_E), v.broadcast(MAGIC))
    n = v.subtract(shifted, v.broadcast(MAGIC))
    rest = v.fma(n, v.broadcast(-LN2_LOW), v.fma(n, v.broadcast(-LN2_HIGH), x))
    power = v.broadcast(1 / 5040)
    for coefficient in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        power = v.fma(power, rest, v.broadcast(coefficient))
    exponent = v.add_int(v.shift_left(v.bits_of(shifted), 23), v.broadcast_int(ONE_BITS))
    return v.multiply(power, v.from_bits(exponent))


@inlined
def times_sigmoid(x, y):
    """x / (1 + e^-y)."""
    return v.divide(x, v.add(v.broadcast(1.0), exponential(v.subtract(v.broadcast(0.0), y))))


@inlined
def error_function(x):
    """erf(x) within 2e-7 (Abramowitz and Stegun 1964, 7.1.26)."""
    zero, one = v.broadcast(0.0), v.broadcast(1.0)
    size = v.maximum(x, v.subtract(zero, x))
    t = v.divide(one, v.fma(v.broadcast(0.3275911), size, one))
    tail = v.broadcast(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = v.fma(tail, t, v.broadcast(coefficient))
    tail = v.multiply(v.multiply(tail, t), exponential(v.subtract(zero, v.multiply(x, x))))
    sign = v.bitwise_and(v.bits_of(x), v.broadcast_int(SIGN_BIT))
    return v.from_bits(v.bitwise_or(v.bits_of(v.subtract(one, tail)), sign))


@inlined
def activate(x, activation):
    if activation == 0:
        cube = v.multiply(v.multiply(x, x), x)
        return times_sigmoid(x, v.multiply(v.fma(v.broadcast(0.044715), cube, x), v.broadcast(GELU)))
    if activation == 1:
        half = v.multiply(x, v.broadcast(0.5))
        return v.fma(half, error_function(v.multiply(x, v.broadcast(0.7071067811865476))), half)
    if activation == 4:
        return times_sigmoid(x, x)
    positive = v.maximum(x, v.broadcast(0.0))
    return positive if activation == 2 else v.multiply(positive, positive)


# --- arrays in float32, and in the dtype of a model: bfloat16 if `is_narrow`, else float32 ----------------------------


@inlined
def rounded(x, is_narrow):
    """A vector in the precision of the model."""
    return v.round_to_bfloat16(x) if is_narrow else x


@inlined
def rounded_number(x, is_narrow):
    """A number in the precision of the model."""
    return v.round_number(x) if is_narrow else x


@inlined
def read_number(address, index, is_narrow):
    return v.read_bfloat16(address, index) if is_narrow else v.read_float(address, index)


@compiled
def read_numbers(source, first, width, x, at, is_narrow):
    """Copy source[first : first + width], in the model's dtype, to x[at : at + width], in float32."""
    whole = width // 16 * 16
    for i in range(0, whole, 16):
        sixteen = v.load_bfloat16(source, first + i) if is_narrow else v.load_float(source, first + i)
        v.store_float(x, at + i, sixteen)
    for i in range(whole, width):
        v.write_float(x, at + i, read_number(source, first + i, is_narrow))


@compiled
def write_numbers(x, first, width, target, at, is_narrow):
    """Copy x[first : first + width], in float32, to target[at : at + width], in the model's dtype."""
    whole = width // 16 * 16
    for i in range(0, whole, 16):
        if is_narrow:
            v.store_bfloat16(target, at + i, v.load_float(x, first + i))
        else:
            v.store_float(target, at + i, v.load_float(x, first + i))
    for i in range(whole, width):
        if is_narrow:
            v.write_bfloat16(target, at + i, v.read_float(x, first + i))
        else:
            v.write_float(target, at + i, v.read_float(x, first + i))


@inlined
def row_sum(x, first, width):
    """The sum of x[first + i] for i < width."""
    sums, total = v.broadcast(0.0), np.float32(0)
    whole = width // 16 * 16
    for i in range(0, whole, 16):
        sums = v.add(sums, v.load_float(x, first + i))
    for i in range(whole, width):
        total += v.read_float(x, first + i)
    return v.reduce_add(sums) + total


@inlined
def allocate(count):
    """Memory for `count` float32 numbers at an address that is a multiple of 64; call `keep` after the last use."""
    memory = np.empty(count + 16, np.float32)
    first = (64 - memory.ctypes.data % 64) // 4
    return memory[first : first + count]


@v.operation(v.void, v.ANY)
def keep(builder, array):
    """Keep an array alive up to this call; numba frees it after its last use, even if its address is still used."""

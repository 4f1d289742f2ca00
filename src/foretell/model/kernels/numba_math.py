"""Exponential and activations on vectors of 16 lanes, for kernels in numba."""

from __future__ import annotations

import numpy as np

from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.compiling import inlined

LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts: products of the first, which has few bits, with whole numbers below 2^8 are exact
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
MAGIC = np.float32(1.5 * 2**23)  # a sum with it is rounded to a whole number, which is then in its lowest bits
ONE_BITS = np.uint32(0x3F800000)
GELU = np.float32(2 * 0.7978845608028654)  # 2 sqrt(2 / pi)
ACTIVATIONS = {"gelu_tanh": 0, "gelu_erf": 1, "relu": 2, "relu2": 3, "silu": 4}


@inlined
def exponential(x):
    """e^x for -87 <= x <= 88, others as these limits: 2^n times a polynomial of the rest (Taylor's, degree 7)."""
    x = v.smaller(v.larger(x, v.full(np.float32(-87))), v.full(np.float32(88)))
    shifted = v.fma(x, v.full(LOG2_E), v.full(MAGIC))
    n = v.subtract(shifted, v.full(MAGIC))
    rest = v.fma(n, v.full(-LN2_LOW), v.fma(n, v.full(-LN2_HIGH), x))
    power = v.full(np.float32(1 / 5040))
    for coefficient in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        power = v.fma(power, rest, v.full(np.float32(coefficient)))
    return v.multiply(power, v.as_floats(v.sum_words(v.shift_left(v.as_words(shifted), 23), v.full_words(ONE_BITS))))


@inlined
def times_sigmoid(x, y):
    """x / (1 + e^-y)."""
    zero, one = v.full(np.float32(0)), v.full(np.float32(1))
    return v.divide(x, v.add(one, exponential(v.subtract(zero, y))))


@inlined
def error_function(x):
    """erf(x) within 2e-7 (Abramowitz and Stegun 1964, 7.1.26)."""
    zero, one = v.full(np.float32(0)), v.full(np.float32(1))
    size = v.larger(x, v.subtract(zero, x))
    t = v.divide(one, v.fma(v.full(np.float32(0.3275911)), size, one))
    tail = v.full(np.float32(1.061405429))
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = v.fma(tail, t, v.full(np.float32(coefficient)))
    tail = v.multiply(v.multiply(tail, t), exponential(v.subtract(zero, v.multiply(x, x))))
    sign = v.both(v.as_words(x), v.full_words(np.uint32(0x80000000)))
    return v.as_floats(v.either(v.as_words(v.subtract(one, tail)), sign))


@inlined
def activate(x, kind):
    """An activation, by its number in ACTIVATIONS."""
    if kind == 0:
        cube = v.multiply(v.multiply(x, x), x)
        return times_sigmoid(x, v.multiply(v.fma(v.full(np.float32(0.044715)), cube, x), v.full(GELU)))
    if kind == 1:
        half = v.multiply(x, v.full(np.float32(0.5)))
        return v.fma(half, error_function(v.multiply(x, v.full(np.float32(0.7071067811865476)))), half)
    if kind == 4:
        return times_sigmoid(x, x)
    positive = v.larger(x, v.full(np.float32(0)))
    return positive if kind == 2 else v.multiply(positive, positive)


@inlined
def round_vector(x, is_narrow):
    """The nearest bfloat16 numbers, ties to even, where `is_narrow`; else x."""
    if not is_narrow:
        return x
    bits = v.quiet(x)
    last = v.both(v.shift_right(bits, 16), v.full_words(np.uint32(1)))
    raised = v.sum_words(v.sum_words(bits, v.full_words(np.uint32(0x7FFF))), last)
    return v.as_floats(v.both(raised, v.full_words(np.uint32(0xFFFF0000))))

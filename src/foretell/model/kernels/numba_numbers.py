"""Rows of float32 from and to arrays in a model's dtype, 16 numbers at a time."""

from __future__ import annotations

from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.compiling import compiled, inlined
from foretell.model.kernels.numba_math import round_vector
from foretell.model.kernels.numba_scalars import read_float, read_number, write_float, write_number

LANES = v.LANES


@inlined
def load_numbers(address, index, is_narrow):
    """16 numbers in bfloat16 or float32, as float32."""
    return v.load_bfloat16(address, index) if is_narrow else v.load_floats(address, index)


@compiled
def read_numbers(source, first, width, x, at, is_narrow):
    """Write source[first : first + width], in bfloat16 or float32, to x[at : at + width]."""
    whole = width // LANES * LANES
    for i in range(0, whole, LANES):
        v.store(x, at + i, load_numbers(source, first + i, is_narrow))
    for i in range(whole, width):
        write_float(x, at + i, read_number(source, first + i, is_narrow))


@compiled
def write_numbers(x, first, width, target, at, is_narrow):
    """Write x[first : first + width] to target[at : at + width], in bfloat16 or float32."""
    whole = width // LANES * LANES
    for i in range(0, whole, LANES):
        sixteen = v.load_floats(x, first + i)
        if is_narrow:
            v.store_bfloat16(target, at + i, round_vector(sixteen, True))
        else:
            v.store(target, at + i, sixteen)
    for i in range(whole, width):
        write_number(target, at + i, read_float(x, first + i), is_narrow)

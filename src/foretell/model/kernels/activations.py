"""What the kernels for few rows read of activations: bfloat16 planes whose sum they are, and sums of groups.

All arrays are given by their addresses.
"""

from __future__ import annotations

import numpy as np

from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.compiling import compiled, inlined
from foretell.model.kernels.numba_scalars import read_float, write_float

UPPER = np.uint32(0xFFFF0000)


@inlined
def padded_inputs(inputs):
    """Inputs of a row as kernels read it, the last ones zeros."""
    return (inputs + 31) // 32 * 32


@inlined
def padded_outputs(outputs):
    """Outputs of a row as kernels write it."""
    return (outputs + 15) // 16 * 16


@inlined
def num_planes(matrix, is_narrow):
    """Planes of activations that a matrix is multiplied by."""
    return (1 if is_narrow else 3) if matrix.uses_amx else 0


@inlined
def totals_of(matrix, prepared, rows, is_narrow):
    """The address of the sums of groups."""
    planes = num_planes(matrix, is_narrow) * rows * padded_inputs(matrix.inputs) // 2
    return prepared + (planes + 15) // 16 * 16 * 4


@compiled
def prepare(matrix, x, prepared, rows, is_narrow, first, last):
    """Make of rows first, ... last - 1 of x (rows, K) what the kernel of a matrix reads."""
    K = padded_inputs(matrix.inputs)
    split_planes(x, prepared, num_planes(matrix, is_narrow), rows, K, first, last)
    if matrix.bits == 4:
        totals = totals_of(matrix, prepared, rows, is_narrow)
        sum_groups(x, K, matrix.group, totals, matrix.inputs // matrix.group, first, last)


@compiled
def split_planes(x, planes, P, rows, K, first, last):
    """bfloat16 numbers whose sum is x (rows, K): one plane where x is exact in bfloat16, else three; (P, rows, K).

    Each plane has the upper half of what the planes before it left; infinities and NaN are in the first alone.
    """
    upper = v.full_words(UPPER)
    for i in range(first * K, last * K if P > 0 else 0, 16):
        rest = v.load_floats(x, i)
        for plane in range(P):
            head = v.both(v.quiet(rest), upper)
            v.store_halves(planes, (plane * rows * K + i) // 2, v.shift_right(head, 16))
            rest = v.finite_or_zero(rest, v.subtract(rest, v.as_floats(head)))


@compiled
def sum_groups(x, K, group, totals, groups, first, last):
    """The sums of x (M, K) over its groups of inputs, (M, groups)."""
    for row in range(first, last):
        for i in range(groups):
            total = np.float32(0)
            for k in range(row * K + i * group, row * K + (i + 1) * group):
                total += read_float(x, k)
            write_float(totals, row * groups + i, total)

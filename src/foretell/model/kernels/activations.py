"""Activations in the form that kernels for few rows read: planes of bfloat16 or int8 numbers, and sums of groups.

Weights in bfloat16 are multiplied by planes whose sum the activations are. Weights in int8 and int4 are multiplied by
planes of integers: within a chunk of inputs, x = unit (first + second / 254 + third / 254^2), where the unit is the
largest absolute value over 127. Two planes have an error of at most 1 / 64,516 of that value, less than the rounding of
bfloat16 in most elements, and three have that of float32. All arrays are given by their addresses.
"""

from __future__ import annotations

import numpy as np

from foretell.model.kernels import numba_vectors as v
from foretell.model.kernels.compiling import compiled, inlined
from foretell.model.kernels.numba_scalars import read_float, write_float, write_index

UPPER = np.uint32(0xFFFF0000)
LEVELS = np.float32(127)  # integers of a plane are at most this
NEXT_PLANE = np.float32(254)  # the unit of a plane is this many times that of the next one
SMALLEST = np.float32(1e-36)  # LEVELS over less would be infinite
ROUNDS = np.float32(1.5 * 2**23)  # a number below 2^22 plus this has an integer in its lowest bits


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
    """Planes of activations that a matrix is multiplied by; 0: the kernel reads the activations themselves."""
    if not matrix.reads_planes:
        return 0
    if matrix.bits < 16:
        return 2 if is_narrow else 3
    return 1 if is_narrow else 3


@inlined
def chunk_of(group):
    """Inputs that share a unit: one to four times as many as a tile of bytes has, or half of it."""
    if group % 64 != 0:
        return 32
    if group % 256 == 0:
        return 256
    if group % 192 == 0:
        return 192
    return 128 if group % 128 == 0 else 64


@inlined
def units_of(matrix, prepared, rows, is_narrow):
    """The address of the units of chunks."""
    element = 1 if matrix.bits < 16 else 2  # bytes
    planes = num_planes(matrix, is_narrow) * rows * padded_inputs(matrix.inputs) * element
    return prepared + (planes + 63) // 64 * 64


@inlined
def offsets_of(units, group, inputs, rows):
    """The address of the offsets of chunks, behind the units."""
    return units + rows * (inputs // chunk_of(group)) * 4


@inlined
def totals_of(units, group, inputs, rows, P):
    """The address of the sums of groups, behind units and offsets if there are any."""
    return units + (P + 1 if P > 0 else 0) * rows * (inputs // chunk_of(group)) * 4


@compiled
def prepare(matrix, x, prepared, rows, is_narrow, first, last):
    """Make of rows first, ... last - 1 of x (rows, K) what the kernel of a matrix reads."""
    K, P = padded_inputs(matrix.inputs), num_planes(matrix, is_narrow)
    units = units_of(matrix, prepared, rows, is_narrow)
    if matrix.bits >= 16:
        split_planes(x, prepared, P, rows, K, first, last)
    elif P > 0:
        round_planes(x, prepared, units, P, rows, matrix.inputs, chunk_of(matrix.group), first, last)
    if matrix.bits == 4:
        totals = totals_of(units, matrix.group, matrix.inputs, rows, P)
        sum_groups(x, K, matrix.group, totals, matrix.inputs // matrix.group, first, last)


@compiled
def round_planes(x, planes, units, P, rows, K, chunk, first, last):
    """Planes (rows, P, K) of int8, units (rows, K / chunk) and offsets (rows, P, K / chunk) of x (rows, K).

    The unit of a chunk that is not finite is NaN. An offset is -128 times the sum of a plane's integers: what is to be
    added to their products with integers that are 128 too large.
    """
    zero, shift, next_plane, chunks = v.full(np.float32(0)), v.full(ROUNDS), v.full(NEXT_PLANE), K // chunk
    for index in range(first * chunks, last * chunks):
        start, row = index * chunk, index // chunks
        largest, check = zero, zero
        for i in range(start, start + chunk, 16):
            largest = v.larger(largest, v.absolute(v.load_floats(x, i)))
            check = v.fma(v.load_floats(x, i), zero, check)  # NaN if x is not finite
        most = v.largest_lane(largest)
        write_float(units, index, most / LEVELS + v.sum_lanes(check))
        inverse = v.full(LEVELS / most if most > SMALLEST else np.float32(0))
        offset = rows * chunks + row * P * chunks + index % chunks  # of the first plane
        for plane in range(P):
            write_float(units, offset + plane * chunks, np.float32(0))
        for i in range(start, start + chunk, 16):
            rest = v.multiply(v.load_floats(x, i), inverse)
            for plane in range(P):
                shifted = v.add(rest, shift)
                v.store_bytes(planes, ((row * (P - 1) + plane) * K + i) // 4, v.as_words(shifted))
                integers = v.subtract(shifted, shift)
                rest = v.multiply(v.subtract(rest, integers), next_plane)
                at = offset + plane * chunks
                write_float(units, at, read_float(units, at) + v.sum_lanes(integers))
        for plane in range(P):
            at = offset + plane * chunks
            total = read_float(units, at)
            write_index(units, at, np.int32(-128 * total if total == total else 0))


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

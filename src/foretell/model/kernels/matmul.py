"""The matrix product of a linear layer for few rows: the choice of the processor's unit and of the threads.

In a packed layer, the operations for a value do not depend on the other rows, their number or the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from foretell.model.kernels import amx
from foretell.model.kernels import integer_matmul as integers
from foretell.model.kernels import vector_matmul as vector
from foretell.model.kernels import vectors as v
from foretell.model.kernels.amx import HAS_AMX
from foretell.model.kernels.compiling import compiled, compiled_callback, inlined, merged
from foretell.model.kernels.packing import INPUTS, LANES, MATRIX, PackedMatrix, padded_inputs, padded_outputs, prepare
from foretell.model.kernels.threads import CALL, LINE, claim, finish, num_tasks, run_on_threads, wait
from foretell.model.kernels.vector_math import read_numbers, write_numbers

FEW_ROWS = 4  # up to this many rows of int8 are faster on vectors than on the matrix unit, with the same results
ROWS_AT_ONCE = 128  # with more, activations leave the cache and need more scratch memory
SERIAL = 2**14  # up to this many activations are prepared by one thread

Unit = Literal["vectors", "dots", "amx"]  # units of the processor; all except "vectors" read planes of activations
Kernel = tuple[int, Unit, int, bool]  # bits, unit, type of the factors, and whether there are minima
KERNEL_ARGUMENTS = 8
# Types of scales and minima, by number
FACTOR_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
LINEAR = np.dtype([*CALL, *v.fields("matrix x out M rows is_narrow")])


@dataclass(frozen=True)
class Matmul:
    """A packed matrix with the unit that multiplies it; with "amx", few rows of int8 weights use "dots".

    Both give the same results, so the result of a row does not depend on the number of rows.
    """

    matrix: PackedMatrix
    unit: Unit

    @cached_property
    def record(self) -> np.ndarray:
        """The matrix for compiled code; valid as long as this object exists."""
        matrix = self.matrix
        kernels = [compiled_kernel(*kernel).address for kernel in kernels_of(matrix, self.unit)]
        arrays = (array.data_ptr() for array in (matrix.words, matrix.factors, matrix.bias))
        plane_bytes = bytes_in_planes(matrix.bits, self.unit)
        sizes = (matrix.bits, matrix.outputs, matrix.inputs, matrix.group, plane_bytes, matrix.turns, matrix.has_minima)
        return np.array((kernels[0], kernels[-1], *arrays, *sizes), MATRIX)

    def __reduce__(self) -> Any:
        return Matmul, (self.matrix, self.unit)  # a copy makes its own record, with its own addresses

    @cached_property
    def address(self) -> int:
        return self.record.ctypes.data

    @property
    def is_padded(self) -> bool:
        """True if kernels read zeros after the inputs of a row."""
        return self.matrix.inputs % INPUTS != 0

    def __call__(self, x: Tensor) -> Tensor:
        """x W' + b for x (..., I) in float32 or bfloat16: (..., O) in the same dtype."""
        x, matrix = x.contiguous(), self.matrix
        out = torch.empty(*x.shape[:-1], matrix.outputs, dtype=x.dtype)
        M = x.numel() // matrix.inputs
        x_row, out_row = matrix.inputs * x.itemsize, matrix.outputs * x.itemsize
        for first in range(0, M, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, M - first)
            rows, places = padded_rows(count), (x.data_ptr() + first * x_row, out.data_ptr() + first * out_row)
            call = (0, 0, 0, self.address, *places, count, rows, x.dtype == torch.bfloat16)
            scratch = rows * scratch_per_row(matrix) + LINE
            run_on_threads(compute_linear, np.array(call, LINEAR), 2, scratch, self.is_padded)
        return out


def padded_rows(count: int) -> int:
    """The rows of activations that kernels read; above the matrix unit's tile size, a multiple of it."""
    return count if count <= amx.ROWS else count + -count % amx.ROWS


def make_matmul(matrix: PackedMatrix) -> Matmul:
    """The product with a matrix on the fastest unit of this processor."""
    return Matmul(matrix, fastest_unit(matrix.bits, matrix.group, matrix.has_minima))


def kernels_of(matrix: PackedMatrix, unit: Unit) -> list[Kernel]:
    """The kernels for many and for few rows."""
    factors = FACTOR_TYPES[matrix.factors.dtype] if matrix.bits < 16 else 0
    return [(matrix.bits, each, factors, matrix.has_minima) for each in units_with(matrix.bits, unit)]


def fastest_unit(bits: int, group: int, has_minima: bool = False) -> Unit:
    """The fastest unit of this processor for weights of `bits` bits; `group` is the group size of integers."""
    is_integer = bits < 16
    if bits == 32 or (is_integer and group % INPUTS != 0):
        return "vectors"
    if HAS_AMX and bits != 4 and not has_minima:  # int4 weights, which have to be decoded, are as fast on vectors
        return "amx"
    return "dots" if is_integer and v.HAS_INTEGER_DOTS else "vectors"


def units_with(bits: int, unit: Unit) -> tuple[Unit, ...]:
    """The unit for many rows, then the unit for few rows if it differs."""
    return (unit, "dots") if unit == "amx" and bits == 8 and v.HAS_VNNI else (unit,)


def bytes_in_planes(bits: int, unit: Unit) -> int:
    """The bytes of an activation in a plane that a unit reads; 0 if it reads the activations themselves."""
    if unit == "vectors":
        return 0
    return 1 if bits < 16 and (unit == "amx" or v.HAS_VNNI) else 2


def scratch_per_row(matrix: PackedMatrix) -> int:
    """An upper bound of the float32 numbers per row: a copy of the activations, their prepared form, the outputs."""
    K, N = matrix.inputs + -matrix.inputs % INPUTS, matrix.outputs + -matrix.outputs % LANES
    return K + prepared_per_row(matrix) + N


def prepared_per_row(matrix: PackedMatrix) -> int:
    """An upper bound of the float32 numbers per row that `prepare` writes."""
    K = matrix.inputs + -matrix.inputs % INPUTS  # three bfloat16 planes take 3/2 of this
    return K * 3 // 2 + matrix.inputs // matrix.group


# --- compiled code ---------------------------------------------------------------------------------------------------


@cache
def compiled_kernel(bits: int, unit: Unit, factor_type: int, has_minima: bool) -> Any:
    return compiled_callback(make_kernel(bits, unit, factor_type, has_minima), KERNEL_ARGUMENTS)


def make_kernel(bits: int, unit: Unit, factor_type: int, has_minima: bool) -> Any:
    """A kernel: a function that writes the outputs of tiles first, ... last - 1 for all rows.

    numba compiles only the branches that these constants select. It finds a cached kernel by the values in its closure.
    So none of them may be a compiled function, which is a different object in each process.
    """
    plane_bytes = bytes_in_planes(bits, unit)

    def kernel(matrix, x, prepared, rows, is_narrow, out, first, last):
        p = vector.make_product(
            bits, factor_type, has_minima, matrix_at(matrix), x, prepared, rows, is_narrow != 0, out
        )
        if unit == "amx":
            if bits == 16:
                amx.multiply_floats(p, first, last)
            else:
                amx.multiply_integers(p, first, last)
        elif unit == "dots":
            if bits == 8:
                decode, products = integers.decode_int8, integers.int8_products
            else:
                decode, products = integers.decode_int4, integers.int4_products
            row = 0
            if plane_bytes == 2 and rows >= integers.MANY_ROWS:
                row = integers.multiply_decoded(decode, p, first, last)
            integers.multiply_planes(products, p, first, last, row)
        elif bits == 32:
            vector.multiply_tiles(vector.float32_sums, p, first, last)
        elif bits == 16:
            vector.multiply_tiles(vector.bfloat16_sums, p, first, last)
        elif bits == 8:
            vector.multiply_tiles(vector.int8_sums, p, first, last)
        else:
            vector.multiply_tiles(vector.int4_sums, p, first, last)

    return kernel


matrix_at, linear_call_at = v.record_at(MATRIX), v.record_at(LINEAR)
call_kernel = v.callback(KERNEL_ARGUMENTS)


def compute_linear(address):
    """x W' + b, from rows at an address to rows at an address."""
    call = linear_call_at(address)
    threads, counters, M, rows, is_narrow = call.threads, call.counters, call.M, call.rows, call.is_narrow != 0
    matrix, values = matrix_at(call.matrix), call.scratch
    K, N = padded_inputs(matrix.inputs), padded_outputs(matrix.outputs)
    result = values + rows * K * 4
    prepared = result + rows * N * 4
    shares = threads if M * K > SERIAL else 1
    share = claim(counters, 0)
    while share < shares:
        first, last = share * M // shares, (share + 1) * M // shares
        read_rows(call.x, matrix.inputs, values, K, is_narrow, first, last)
        prepare(matrix, values, prepared, rows, is_narrow, first, last)
        finish(counters, 0)
        share = claim(counters, 0)
    wait(counters, 0, shares)
    write_outputs(matrix, values, prepared, rows, is_narrow, result, M, call.out, threads, counters, 1)


@merged
def write_outputs(matrix, x, prepared, rows, is_narrow, result, M, out, threads, counters, phase):
    """All outputs of M rows in the model's dtype, by tasks of a phase; `result`: memory for them in float32."""
    N = padded_outputs(matrix.outputs)
    tasks = num_tasks(N // 16, threads)
    task = claim(counters, phase)
    while task < tasks:
        first, last = task * (N // 16) // tasks, (task + 1) * (N // 16) // tasks
        multiply_part(matrix, x, prepared, rows, is_narrow, result, first, last)
        write_columns(result, N, M, first * 16, min(last * 16, matrix.outputs), out, matrix.outputs, is_narrow)
        task = claim(counters, phase)


@compiled
def read_rows(x, width, values, K, is_narrow, first, last):
    """Rows first, ... last - 1 of x (M, width) as float32, (M, K)."""
    for row in range(first, last):
        read_numbers(x, row * width, width, values, row * K, is_narrow)


@compiled
def write_columns(result, N, M, first, last, out, width, is_narrow):
    """Write outputs first, ... last - 1 of all rows."""
    for row in range(M):
        write_numbers(result, row * N + first, last - first, out, row * width + first, is_narrow)


@inlined
def multiply_part(matrix, x, prepared, rows, is_narrow, result, first, last):
    """Outputs of tiles first, ... last - 1 for all rows, from x and its prepared form."""
    kernel = matrix.few_rows_kernel if rows <= FEW_ROWS else matrix.kernel
    call_kernel(kernel, v.address_of(matrix), x, prepared, rows, is_narrow, result, first, last)

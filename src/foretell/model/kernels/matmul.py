"""The matrix product of a linear layer for few rows: which unit of the processor computes it, and on which threads.

Within a packed layer every value is computed by the same operations with any other rows, any number of them and any
number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from foretell.model.kernels import amx_integers, amx_rows, few_rows, integer_rows
from foretell.model.kernels.activations import (
    num_planes,
    padded_inputs,
    padded_outputs,
    prepare,
    units_of,
)
from foretell.model.kernels.amx_vectors import HAS_AMX
from foretell.model.kernels.compiling import compiled, compiled_callback, inlined
from foretell.model.kernels.integer_rows import HAS_VNNI
from foretell.model.kernels.numba_numbers import read_numbers, write_numbers
from foretell.model.kernels.numba_scalars import call_address, read_long
from foretell.model.kernels.packed_matrix import INPUTS, LANES, MatrixView, PackedMatrix
from foretell.model.kernels.tasks import LINE, claim, finish, num_tasks, run_on_threads, wait

FEW_ROWS_INT8, FEW_ROWS_INT4 = 4, 8  # up to so many rows are multiplied faster on vectors, with the same results
SERIAL = 2**14  # activations that one thread prepares before the others are asked to help


Unit = Literal["vectors", "vnni", "amx"]  # of the processor; all but the first read planes of activations
ARGUMENTS = 13  # of a kernel


@dataclass(frozen=True)
class Matmul:
    """A packed matrix with the unit that multiplies it; "amx" leaves few rows of integer weights to VNNI.

    Both have the same results, so a row's do not depend on the number of rows.
    """

    matrix: PackedMatrix
    unit: Unit

    @cached_property
    def view(self) -> MatrixView:
        """The matrix for compiled code; valid as long as this object exists."""
        matrix = self.matrix
        words, factors, bias = (array.data_ptr() for array in (matrix.words, matrix.factors, matrix.bias))
        group = matrix.group or matrix.inputs
        address = kernel(matrix.bits, self.unit).address
        has_both = self.unit == "amx" and matrix.bits < 16 and HAS_VNNI
        few = kernel(matrix.bits, "vnni").address if has_both else address
        sizes = (matrix.bits, matrix.outputs, matrix.inputs, group)
        return MatrixView(address, few, words, factors, bias, *sizes, self.unit != "vectors")

    @property
    def is_padded(self) -> bool:
        """True if kernels read more inputs per row than there are: zeros."""
        return self.matrix.inputs % INPUTS != 0

    def __call__(self, x: Tensor) -> Tensor:
        """x W' + b for x (..., I) in float32 or bfloat16: (..., O) in the same dtype."""
        x, matrix = x.contiguous(), self.matrix
        out = torch.empty(*x.shape[:-1], matrix.outputs, dtype=x.dtype)
        M, is_narrow = x.numel() // matrix.inputs, x.dtype == torch.bfloat16
        if M == 0:
            return out  # a tile of the matrix unit must have a row
        rows = M if M <= amx_rows.ROWS else M + -M % amx_rows.ROWS
        arguments = (*self.view, x.data_ptr(), out.data_ptr(), M, rows, is_narrow)
        run_on_threads(linear_program(), arguments, 2, rows * scratch_per_row(matrix) + LINE, self.is_padded)
        return out


def make_matmul(matrix: PackedMatrix) -> Matmul:
    """The product with a matrix on the fastest unit of this processor."""
    is_integer = matrix.bits < 16
    if matrix.bits == 32 or (is_integer and matrix.group % INPUTS != 0):
        return Matmul(matrix, "vectors")
    if HAS_AMX:
        return Matmul(matrix, "amx")
    return Matmul(matrix, "vnni" if is_integer and HAS_VNNI else "vectors")


@cache
def kernel(bits: int, unit: Unit) -> Any:
    """The compiled kernel for weights of so many bits."""
    kernels = {
        "vectors": few_rows.KERNELS,
        "vnni": integer_rows.KERNELS,
        "amx": {**amx_rows.KERNELS, **amx_integers.KERNELS},
    }
    return compiled_callback(kernels[unit][bits], ARGUMENTS)


@cache
def linear_program() -> Any:
    """The compiled program of one linear layer."""
    return compiled_callback(linear, 1)


def scratch_per_row(matrix: PackedMatrix) -> int:
    """At most so many float32 numbers per row of activations: their copy and its planes, sums of groups, outputs."""
    K, N = matrix.inputs + -matrix.inputs % INPUTS, matrix.outputs + -matrix.outputs % LANES
    return K + prepared_per_row(matrix) + N


def prepared_per_row(matrix: PackedMatrix) -> int:
    """At most so many float32 numbers per row of what `prepare` makes of activations."""
    K = matrix.inputs + -matrix.inputs % INPUTS  # three planes of bfloat16 take 3/2 of it
    return K * 3 // 2 + matrix.inputs // (matrix.group or matrix.inputs)


def linear(arguments):
    """x W' + b, from rows at an address to rows at an address."""
    threads, counters, values = read_long(arguments, 0), read_long(arguments, 1), read_long(arguments, 2)
    matrix, x, out = read_matrix(arguments, 3), read_long(arguments, 13), read_long(arguments, 14)
    M, rows, is_narrow = read_long(arguments, 15), read_long(arguments, 16), read_long(arguments, 17) != 0
    K, N = padded_inputs(matrix.inputs), padded_outputs(matrix.outputs)
    result = values + rows * K * 4
    prepared = result + rows * N * 4
    shares = threads if M * K > SERIAL else 1
    share = claim(counters, 0)
    while share < shares:
        first, last = share * M // shares, (share + 1) * M // shares
        read_rows(x, matrix.inputs, values, K, is_narrow, first, last)
        prepare(matrix, values, prepared, rows, is_narrow, first, last)
        finish(counters, 0)
        share = claim(counters, 0)
    wait(counters, 0, shares)
    tasks = num_tasks(N // 16, threads)
    task = claim(counters, 1)
    while task < tasks:
        first, last = task * (N // 16) // tasks, (task + 1) * (N // 16) // tasks
        multiply_part(matrix, values, prepared, rows, is_narrow, result, first, last)
        write_columns(result, N, M, first * 16, min(last * 16, matrix.outputs), out, matrix.outputs, is_narrow)
        task = claim(counters, 1)


@inlined
def read_matrix(numbers, at):
    """The view of a matrix, from the numbers at an address."""
    kernel, few, words = read_long(numbers, at), read_long(numbers, at + 1), read_long(numbers, at + 2)
    factors, bias, bits = read_long(numbers, at + 3), read_long(numbers, at + 4), read_long(numbers, at + 5)
    outputs, inputs, group = read_long(numbers, at + 6), read_long(numbers, at + 7), read_long(numbers, at + 8)
    return MatrixView(kernel, few, words, factors, bias, bits, outputs, inputs, group, read_long(numbers, at + 9) != 0)


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


@compiled
def multiply_part(matrix, x, prepared, rows, is_narrow, result, first, last):
    """Outputs of tiles first, ... last - 1 for all rows, from what `prepare` made of x."""
    P, N = num_planes(matrix, is_narrow), padded_outputs(matrix.outputs)
    weights = (matrix.words, matrix.factors, matrix.bias, matrix.inputs, matrix.group)
    activations = (prepared if P > 0 else x, units_of(matrix, prepared, rows, is_narrow))
    few_rows = FEW_ROWS_INT4 if matrix.bits == 4 else FEW_ROWS_INT8
    kernel = matrix.few_rows_kernel if rows <= few_rows else matrix.kernel
    call_address(kernel, weights + activations + (P, rows, result, N, first, last))

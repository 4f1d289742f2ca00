"""Operations on a vector of 16 lanes per row, for kernels in numba: tuples of vectors, all of them held in registers.

Each function is written out once per row when it is compiled, for tuples of any length.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from foretell.model.kernels.compiling import intrinsic
from foretell.model.kernels.numba_vectors import FLOATS, address, constant, floats, fused, spread, unaligned


@intrinsic
def zeros(typing_context, rows):
    """A vector of zeros for each row; `rows` is a tuple with as many elements."""

    def generate(context, builder, signature, arguments):
        vectors = [constant(FLOATS, 0.0)] * len(signature.return_type)
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(floats, len(rows))(rows), generate


@intrinsic
def fma(typing_context, sums, weights, x, first, stride):
    """sums[r] + weights * x[first + r * stride], for every row r."""

    def generate(context, builder, signature, arguments):
        sums, weights, x, first, stride = arguments
        new = []
        for row in range(len(signature.return_type)):
            index = builder.add(first, builder.mul(stride, ir.Constant(ir.IntType(64), row)))
            element = builder.load(address(context, builder, signature.args[2], x, index, ir.FloatType()))
            total = builder.extract_value(sums, row)
            new.append(fused(builder, spread(builder, element, FLOATS), weights, total))
        return context.make_tuple(builder, signature.return_type, new)

    return sums(sums, weights, x, types.int64, types.int64), generate


@intrinsic
def scale(typing_context, sums, parts, scales):
    """sums[r] + parts[r] * scales, for every row r."""

    def generate(context, builder, signature, arguments):
        sums, parts, scales = arguments
        count = len(signature.return_type)
        old = [(builder.extract_value(sums, row), builder.extract_value(parts, row)) for row in range(count)]
        new = [fused(builder, part, scales, total) for total, part in old]
        return context.make_tuple(builder, signature.return_type, new)

    return sums(sums, parts, scales), generate


@intrinsic
def add(typing_context, sums, others):
    """sums[r] + others[r], for every row r."""

    def generate(context, builder, signature, arguments):
        count = len(signature.return_type)
        pairs = [[builder.extract_value(argument, row) for argument in arguments] for row in range(count)]
        return context.make_tuple(builder, signature.return_type, [builder.fadd(*pair) for pair in pairs])

    return sums(sums, others), generate


@intrinsic
def store(typing_context, array, first, stride, sums, bias):
    """Write sums[r] + bias to array[first + r * stride], for every row r."""

    def generate(context, builder, signature, arguments):
        array, first, stride, sums, bias = arguments
        for row in range(len(signature.args[3])):
            index = builder.add(first, builder.mul(stride, ir.Constant(ir.IntType(64), row)))
            where = address(context, builder, signature.args[0], array, index, FLOATS)
            unaligned(builder.store(builder.fadd(builder.extract_value(sums, row), bias), where))
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, sums, bias), generate

"""Operations on a vector of 16 lanes per row, for kernels in numba: tuples of vectors, all of them held in registers.

Each function is written out once per row when it is compiled, for tuples of any length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from foretell.model.kernels.compiling import intrinsic
from foretell.model.kernels.numba_vectors import (
    FLOATS,
    LANES,
    WORDS,
    address,
    bfloat16_from,
    call,
    constant,
    floats,
    fused,
    spread,
    unaligned,
    words,
)


def element_of(context: Any, builder: Any, array_type: Any, source: Any, row: int, vector: ir.VectorType) -> Any:
    """array[first + row * stride] in every lane; `source` is (array, first, stride)."""
    array, first, stride = source
    index = builder.add(first, builder.mul(stride, ir.Constant(ir.IntType(64), row)))
    return spread(builder, builder.load(address(context, builder, array_type, array, index, vector.element)), vector)


@intrinsic
def zeros(typing_context, rows):
    """A vector of zeros for each row; `rows` is a tuple with as many elements."""

    def generate(context, builder, signature, arguments):
        vectors = [constant(FLOATS, 0.0)] * len(signature.return_type)
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(floats, len(rows))(rows), generate


@intrinsic
def zero_words(typing_context, rows):
    """A vector of integers 0 for each row."""

    def generate(context, builder, signature, arguments):
        vectors = [ir.Constant(WORDS, [0] * 16)] * len(signature.return_type)
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(words, len(rows))(rows), generate


@intrinsic
def fma(typing_context, sums, weights, x, first, stride):
    """sums[r] + weights * x[first + r * stride], for every row r."""

    def generate(context, builder, signature, arguments):
        sums, weights, x, first, stride = arguments
        new = []
        for row in range(len(signature.return_type)):
            element = element_of(context, builder, signature.args[2], (x, first, stride), row, FLOATS)
            new.append(fused(builder, element, weights, builder.extract_value(sums, row)))
        return context.make_tuple(builder, signature.return_type, new)

    return sums(sums, weights, x, types.int64, types.int64), generate


@intrinsic
def fma_floats(typing_context, sums, x, array, first, stride):
    """sums[r] + x * the vector at array[first + r * stride], for every row r."""

    def generate(context, builder, signature, arguments):
        array_type = signature.args[2]
        return fused_with(
            context,
            builder,
            signature,
            arguments,
            lambda array, index: unaligned(
                builder.load(address(context, builder, array_type, array, index, FLOATS), typ=FLOATS)
            ),
        )

    return sums(sums, x, array, types.int64, types.int64), generate


@intrinsic
def fma_bfloat16(typing_context, sums, x, pointer, first, stride):
    """sums[r] + x * the vector of bfloat16 numbers at an address, the first + r * stride-th and those after it."""

    def generate(context, builder, signature, arguments):
        return fused_with(context, builder, signature, arguments, lambda *place: bfloat16_from(builder, *place))

    return sums(sums, x, pointer, types.int64, types.int64), generate


def fused_with(context: Any, builder: Any, signature: Any, arguments: Any, load: Callable[..., Any]) -> Any:
    """sums[r] + x * load(source, first + r * stride), for every row r."""
    sums, x, source, first, stride = arguments
    new = []
    for row in range(len(signature.return_type)):
        index = builder.add(first, builder.mul(stride, ir.Constant(ir.IntType(64), row)))
        new.append(fused(builder, x, load(source, index), builder.extract_value(sums, row)))
    return context.make_tuple(builder, signature.return_type, new)


@intrinsic
def sum_lanes(typing_context, vectors):
    """The sums of the lanes of 16 vectors, each computed as `numba_vectors.sum_lanes` does."""

    def generate(context, builder, signature, arguments):
        parts = [builder.extract_value(arguments[0], row) for row in range(LANES)]
        width = LANES  # lanes of one vector's part; a vector has parts of LANES / width of them
        while width > 1:
            width //= 2
            pairs = zip(parts[0::2], parts[1::2], strict=True)
            parts = [sum_halves(builder, one, other, width) for one, other in pairs]
        return parts[0]

    return floats(vectors), generate


def sum_halves(builder: Any, one: Any, other: Any, width: int) -> Any:
    """The sums of the lower and the upper `width` lanes of each part of two vectors, one after the other."""
    low = [start + lane for start in range(0, 2 * LANES, 2 * width) for lane in range(width)]
    chosen = [ir.Constant(WORDS, [lane + shift for lane in low]) for shift in (0, width)]
    return builder.fadd(*(builder.shuffle_vector(one, other, lanes) for lanes in chosen))


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
def elements(typing_context, rows, array, first, stride):
    """The integer array[first + r * stride] in every lane, for every row r."""

    def generate(context, builder, signature, arguments):
        count = len(signature.return_type)
        new = [element_of(context, builder, signature.args[1], arguments[1:], row, WORDS) for row in range(count)]
        return context.make_tuple(builder, signature.return_type, new)

    return types.UniTuple(words, len(rows))(rows, array, types.int64, types.int64), generate


@intrinsic
def dot_bytes(typing_context, sums, weights, x, first, stride):
    """sums[r] + the products of four unsigned bytes per lane of the weights and four signed bytes of x, for every row.

    The bytes of x are those of the word x[first + r * stride]. One instruction of processors with VNNI.
    """

    def generate(context, builder, signature, arguments):
        sums, weights, *source = arguments
        new = []
        for row in range(len(signature.return_type)):
            four = element_of(context, builder, signature.args[2], source, row, WORDS)
            operands = [builder.extract_value(sums, row), weights, four]
            new.append(call(builder, "llvm.x86.avx512.vpdpbusd.512", WORDS, operands))
        return context.make_tuple(builder, signature.return_type, new)

    return sums(sums, weights, x, types.int64, types.int64), generate


@intrinsic
def join_planes(typing_context, rows, integers, share):
    """The sum of share^p times integers[r * P + p] over the P planes p, for every row r, as floats."""

    def generate(context, builder, signature, arguments):
        _, integers, share = arguments
        planes = len(signature.args[1]) // len(signature.args[0])
        new = []
        for row in range(len(signature.return_type)):
            total = None
            for plane in reversed(range(planes)):
                number = builder.sitofp(builder.extract_value(integers, row * planes + plane), FLOATS)
                total = number if total is None else fused(builder, total, share, number)
            new.append(total)
        return context.make_tuple(builder, signature.return_type, new)

    return rows(rows, integers, share), generate


@intrinsic
def scale_by_units(typing_context, sums, parts, scales, units, first, stride):
    """sums[r] + parts[r] * (units[first + r * stride] * scales), for every row r."""

    def generate(context, builder, signature, arguments):
        sums, parts, scales, *source = arguments
        new = []
        for row in range(len(signature.return_type)):
            unit = element_of(context, builder, signature.args[3], source, row, FLOATS)
            total, part = builder.extract_value(sums, row), builder.extract_value(parts, row)
            new.append(fused(builder, part, builder.fmul(unit, scales), total))
        return context.make_tuple(builder, signature.return_type, new)

    return sums(sums, parts, scales, units, types.int64, types.int64), generate


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

"""Operations of integer matrix products on vectors: all pairs of weight tiles and rows, and planes of activations.

Activations of 16 bits and more are the sum of several planes of bytes, which are multiplied one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from foretell.model.kernels.compiling import intrinsic
from foretell.model.kernels.vectors import (
    FLOATS,
    HAS_VNNI,
    INT8,
    INT16,
    INTS,
    LANES,
    call,
    constant,
    emit_fma,
    floats,
    halves_of,
    integer,
    ints,
)

AVX2_HALVES, AVX2_BYTES = ir.VectorType(INT16, 16), ir.VectorType(INT8, 32)

# --- planes: the planes of a row follow each other --------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def zero_planes(typing_context, rows, planes):
    """Integer vectors of zeros for several planes of every row; the planes of a row follow each other."""

    def generate(context, builder, signature, arguments):
        zeros = [constant(INTS, 0)] * len(signature.return_type)
        return context.make_tuple(builder, signature.return_type, zeros)

    return types.UniTuple(ints, len(rows) * planes.literal_value)(rows, planes), generate


@intrinsic
def join_planes(typing_context, rows, integers, ratio):
    """The sum of ratio^p * integers[r * P + p] over the P planes p, for every row r, as floats."""

    def generate(context, builder, signature, arguments):
        planes = len(signature.args[1]) // len(signature.args[0])
        numbers = [
            builder.sitofp(builder.extract_value(arguments[1], index), FLOATS)
            for index in range(len(signature.args[1]))
        ]
        totals = numbers[planes - 1 :: planes]
        for plane in reversed(range(planes - 1)):
            pairs = zip(totals, numbers[plane::planes], strict=True)
            totals = [emit_fma(builder, total, arguments[2], each) for total, each in pairs]
        return context.make_tuple(builder, signature.return_type, totals)

    return types.UniTuple(floats, len(rows))(rows, integers, ratio), generate


# --- all pairs of the elements of two tuples, such as tiles and rows; the pairs of the first element come first -------


def outer(emit: Callable[..., Any], returns: Any = None) -> Callable[..., Any]:
    """An operation on all pairs; without `returns` its first argument has a vector for each pair, which it changes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *changed, one, other = (cgutils.unpack_tuple(builder, argument) for argument in arguments)
        rows = zip(*changed, product(one, other), strict=True)
        results = [emit(builder, *given, *pair) for *given, pair in rows]
        return context.make_tuple(builder, signature.return_type, results)

    if returns is None:
        return intrinsic(lambda typing_context, changed, one, other: (changed(changed, one, other), generate))
    return intrinsic(
        lambda typing_context, one, other: (types.UniTuple(returns, len(one) * len(other))(one, other), generate)
    )


def emit_dot(builder: Any, sums: Any, weights: Any, x: Any) -> Any:
    """Add the products of four bytes of weights, from 0 to 127 or with VNNI to 255, and of four signed bytes of x."""
    if HAS_VNNI:
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, sums, weights, x)
    return in_halves(builder, emit_dot_avx2, sums, weights, x)


def emit_signed_dot(builder: Any, sums: Any, weights: Any, x: Any) -> Any:
    """Add the products of four signed bytes of weights and of x, all from -127 to 127; without VNNI."""
    return in_halves(builder, emit_signed_dot_avx2, sums, weights, x)


def emit_dot_avx2(builder: Any, sums: Any, weights: Any, x: Any) -> Any:
    """`emit_dot` for eight lanes. The sum of two products fits 16 bits."""
    weights, x = (builder.bitcast(each, AVX2_BYTES) for each in (weights, x))
    pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", AVX2_HALVES, weights, x)
    fours = call(builder, "llvm.x86.avx2.pmadd.wd", sums.type, pairs, constant(AVX2_HALVES, 1))
    return builder.add(sums, fours)


def emit_signed_dot_avx2(builder: Any, sums: Any, weights: Any, x: Any) -> Any:
    """`emit_signed_dot` for eight lanes: weights without their signs, which x is given."""
    signed, bytes_of_x = (builder.bitcast(each, AVX2_BYTES) for each in (weights, x))
    absolute = call(builder, "llvm.abs.v32i8", AVX2_BYTES, signed, ir.Constant(ir.IntType(1), 0))
    turned = call(builder, "llvm.x86.avx2.psign.b", AVX2_BYTES, bytes_of_x, signed)
    return emit_dot_avx2(builder, sums, absolute, turned)


def in_halves(builder: Any, emit: Callable[..., Any], *vectors: Any) -> Any:
    """The result of an operation on eight lanes, for sixteen."""
    halves = [emit(builder, *parts) for parts in zip(*(halves_of(builder, each) for each in vectors), strict=True)]
    return builder.shuffle_vector(*halves, ir.Constant(INTS, list(range(LANES))))


outer_index = outer(lambda builder, one, other: builder.add(one, other), integer)
outer_multiply = outer(lambda builder, one, other: builder.fmul(one, other), floats)
outer_repeat = outer(lambda builder, one, other: other, ints)
add_first = outer(lambda builder, sums, one, other: builder.fadd(sums, one))
fma_outer = outer(lambda builder, sums, one, other: emit_fma(builder, one, other, sums))
dot_outer, signed_dot_outer = outer(emit_dot), outer(emit_signed_dot)

"""Vector operations for integer matrix products, on all pairs of weight tiles and rows, and on activation planes.

Activations of 16 or more bits are sums of several planes of bytes, which are multiplied separately.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from foretell.model.kernels import vectors as v
from foretell.model.kernels.compiling import intrinsic

AVX2_HALVES = ir.VectorType(v.INT16, 16)

# --- planes: the planes of a row are consecutive ----------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def zero_planes(typing_context, rows, planes):
    """Integer vectors of zeros for several planes of every row."""

    def generate(context, builder, signature, arguments):
        zeros = [v.constant(v.INTS, 0)] * len(signature.return_type)
        return context.make_tuple(builder, signature.return_type, zeros)

    return types.UniTuple(v.ints, len(rows) * planes.literal_value)(rows, planes), generate


@intrinsic
def join_planes(typing_context, rows, integers, ratio):
    """The sums of integers[r * P + p] over the planes p as floats, for every row r.

    With VNNI, the first plane counts 256 times the second. The rest follows, multiplied by `ratio`.
    """

    def generate(context, builder, signature, arguments):
        sums = cgutils.unpack_tuple(builder, arguments[1])
        planes = len(sums) // len(signature.args[0])
        totals = sums[::planes]
        if v.HAS_VNNI:
            pairs = zip(totals, sums[1::planes], strict=True)
            totals = [builder.add(builder.shl(upper, v.constant(v.INTS, 8)), lower) for upper, lower in pairs]
        totals = [builder.sitofp(total, v.FLOATS) for total in totals]
        if planes == (3 if v.HAS_VNNI else 2):
            rests = [builder.sitofp(each, v.FLOATS) for each in sums[planes - 1 :: planes]]
            totals = [v.emit_fma(builder, rest, arguments[2], total) for rest, total in zip(rests, totals, strict=True)]
        return context.make_tuple(builder, signature.return_type, totals)

    return types.UniTuple(v.floats, len(rows))(rows, integers, ratio), generate


# --- all pairs of the elements of two tuples, such as tiles and rows; the pairs of the first element come first -------


def outer(emit: Callable[..., Any], returns: Any = None) -> Callable[..., Any]:
    """An operation on all pairs. Without `returns`, it changes its first argument, which has a vector for each pair."""

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
    """Add the products of four unsigned bytes of weights and four signed bytes of x, with VNNI."""
    return v.call(builder, "llvm.x86.avx512.vpdpbusd.512", v.INTS, sums, weights, x)


def emit_pair_dot(builder: Any, sums: Any, weights: Any, x: Any) -> Any:
    """Add the products of two integers of 16 bits, for eight lanes of AVX2."""
    weights, x = (builder.bitcast(each, AVX2_HALVES) for each in (weights, x))
    return builder.add(sums, v.call(builder, "llvm.x86.avx2.pmadd.wd", sums.type, weights, x))


def in_halves(builder: Any, emit: Callable[..., Any], *vectors: Any) -> Any:
    """The result of an operation on eight lanes, for sixteen."""
    halves = [emit(builder, *parts) for parts in zip(*(v.halves_of(builder, each) for each in vectors), strict=True)]
    return builder.shuffle_vector(*halves, ir.Constant(v.INTS, list(range(v.LANES))))


outer_index = outer(lambda builder, one, other: builder.add(one, other), v.integer)
outer_multiply = outer(lambda builder, one, other: builder.fmul(one, other), v.floats)
outer_repeat = outer(lambda builder, one, other: other, v.ints)
add_first = outer(lambda builder, sums, one, other: builder.fadd(sums, one))
fma_outer = outer(lambda builder, sums, one, other: v.emit_fma(builder, one, other, sums))
dot_outer = outer(emit_dot)
pair_dot_outer = outer(lambda builder, *vectors: in_halves(builder, emit_pair_dot, *vectors))

"""Single numbers for kernels in numba: bfloat16, numbers at addresses, and calls of compiled functions."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from foretell.model.kernels.compiling import inlined, intrinsic

INT16, INT32, FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()


@intrinsic
def bits_of(typing_context, x):
    """The bits of a float32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], INT32)

    return types.uint32(types.float32), generate


@intrinsic
def from_bits(typing_context, bits):
    """The float32 with these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.uint32), generate


def element_access(element: ir.Type, number: types.Type):
    """Two intrinsics that read and write the index-th element of this type from an address."""

    def place(builder, address, index):
        return builder.gep(builder.inttoptr(address, element.as_pointer()), [index], source_etype=element)

    @intrinsic
    def read(typing_context, address, index):
        def generate(context, builder, signature, arguments):
            return builder.load(place(builder, *arguments), typ=element)

        return number(types.int64, types.int64), generate

    @intrinsic
    def write(typing_context, address, index, value):
        def generate(context, builder, signature, arguments):
            builder.store(arguments[2], place(builder, *arguments[:2]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, number), generate

    return read, write


read_float, write_float = element_access(FLOAT, types.float32)
read_index, write_index = element_access(INT32, types.int32)
read_long, _ = element_access(ir.IntType(64), types.int64)
read_double, _ = element_access(ir.DoubleType(), types.float64)
read_half, write_half = element_access(INT16, types.uint16)


@intrinsic
def call_address(typing_context, function, arguments):
    """Call the compiled function at an address with a tuple of integers."""

    def generate(context, builder, signature, values):
        count = len(signature.args[1])
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * count)
        target = builder.inttoptr(values[0], kind.as_pointer())
        builder.call(target, [builder.extract_value(values[1], place) for place in range(count)])
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


@inlined
def widen(half):
    """The float32 of a bfloat16, whose bits are given as uint16."""
    return from_bits(np.uint32(np.uint32(half) << np.uint32(16)))


@inlined
def rounded(x):
    """The nearest bfloat16, ties to even, as a float32."""
    bits = bits_of(x)
    if x != x:
        return x
    lower = np.uint32(np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return from_bits(np.uint32((bits + lower) & np.uint32(0xFFFF0000)))


@inlined
def narrow(x):
    """The bits of the nearest bfloat16, ties to even, as uint16."""
    if x != x:
        return np.uint16(0x7FC0)
    return np.uint16(bits_of(rounded(x)) >> np.uint32(16))


@inlined
def read_number(address, index, is_narrow):
    """The index-th number from an address, bfloat16 or float32."""
    return widen(read_half(address, index)) if is_narrow else read_float(address, index)


@inlined
def write_number(address, index, x, is_narrow):
    """Write the index-th number from an address, as bfloat16 or float32."""
    if is_narrow:
        write_half(address, index, narrow(x))
    else:
        write_float(address, index, x)

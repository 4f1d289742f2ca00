"""Vectors of 16 lanes for kernels in numba: each function is one instruction of LLVM, or a few.

LLVM makes one instruction of AVX-512, two of AVX2 or four of NEON out of each. `Floats` holds float32, `Words` holds
32-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from foretell.model.kernels.compiling import intrinsic

LANES = 16
INT32, INT16, INT8 = ir.IntType(32), ir.IntType(16), ir.IntType(8)
FLOATS = ir.VectorType(ir.FloatType(), LANES)
WORDS = ir.VectorType(INT32, LANES)
HALVES = ir.VectorType(INT16, LANES)
BYTES = ir.VectorType(INT8, LANES)


class VectorType(types.Type):
    """numba's type of a vector, with the type that LLVM has for it."""

    def __init__(self, name: str, llvm_type: ir.VectorType):
        self.llvm_type = llvm_type
        super().__init__(name=name)


floats, words = VectorType("Floats", FLOATS), VectorType("Words", WORDS)


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    """A vector is held in registers."""

    def __init__(self, manager: Any, vector: VectorType):
        super().__init__(manager, vector, vector.llvm_type)


def address(context: Any, builder: Any, array_type: Any, array: Any, index: Any, element: Any) -> Any:
    """The address of array[index] as a pointer to `element`.

    The array is contiguous, or the address of one whose elements have four bytes: numba counts references to arrays
    that are taken out of tuples, which takes longer than a small kernel.
    """
    if isinstance(array_type, types.Integer):
        data = builder.inttoptr(array, INT32.as_pointer())
        return builder.bitcast(builder.gep(data, [index], source_etype=INT32), element.as_pointer())
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), element.as_pointer())


def constant(vector: ir.VectorType, value: float) -> ir.Constant:
    """The same value in every lane."""
    return ir.Constant(vector, [value] * vector.count)


def spread(builder: Any, value: Any, vector: ir.VectorType) -> Any:
    """A number in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(INT32, 0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), constant(WORDS, 0))


def call(builder: Any, name: str, returns: ir.Type, arguments: list[Any]) -> Any:
    """Call an operation of LLVM."""
    kind = ir.FunctionType(returns, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""
    return call(builder, "llvm.fma.v16f32", FLOATS, [x, y, z])


def unaligned(instruction: Any) -> Any:
    """A load or store of a vector at any address."""
    instruction.align = 1
    return instruction


def operation(returns: VectorType, emit: Callable[..., Any]) -> Callable[..., Any]:
    """An intrinsic on vectors alone: emit(builder, *vectors)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit(builder, *arguments)

    if emit.__code__.co_argcount == 2:
        return intrinsic(lambda typing_context, x: (returns(x), generate))
    if emit.__code__.co_argcount == 3:
        return intrinsic(lambda typing_context, x, y: (returns(x, y), generate))
    return intrinsic(lambda typing_context, x, y, z: (returns(x, y, z), generate))


add = operation(floats, lambda builder, x, y: builder.fadd(x, y))
subtract = operation(floats, lambda builder, x, y: builder.fsub(x, y))
multiply = operation(floats, lambda builder, x, y: builder.fmul(x, y))
fma = operation(floats, fused)
either = operation(words, lambda builder, x, y: builder.or_(x, y))
differ = operation(words, lambda builder, x, y: builder.xor(x, y))
both = operation(words, lambda builder, x, y: builder.and_(x, y))
as_floats = operation(floats, lambda builder, x: builder.bitcast(x, FLOATS))  # the same bits
as_words = operation(words, lambda builder, x: builder.bitcast(x, WORDS))
absolute = operation(floats, lambda builder, x: call(builder, "llvm.fabs.v16f32", FLOATS, [x]))
to_floats = operation(floats, lambda builder, x: builder.sitofp(x, FLOATS))  # the same numbers
divide = operation(floats, lambda builder, x, y: builder.fdiv(x, y))
larger = operation(floats, lambda builder, x, y: builder.select(builder.fcmp_ordered("<", x, y), y, x))  # NaN: x
smaller = operation(floats, lambda builder, x, y: builder.select(builder.fcmp_ordered(">", x, y), y, x))
sum_words = operation(words, lambda builder, x, y: builder.add(x, y))
quiet = operation(words, lambda builder, x: quiet_words(builder, x))
finite_or_zero = operation(floats, lambda builder, x, y: where_finite(builder, x, y))


def quiet_words(builder: Any, x: Any) -> Any:
    """The bits of x; those of every NaN are the same, in the upper half."""
    is_number = builder.fcmp_ordered("ord", x, x)
    return builder.select(is_number, builder.bitcast(x, WORDS), constant(WORDS, 0x7FC00000))


def where_finite(builder: Any, x: Any, y: Any) -> Any:
    """y where x is finite, else 0."""
    is_finite = builder.fcmp_ordered("oeq", builder.fsub(x, x), constant(FLOATS, 0.0))
    return builder.select(is_finite, y, constant(FLOATS, 0.0))


@intrinsic
def sum_lanes(typing_context, x):
    """The sum of the 16 lanes: of halves, of their halves, and so on."""

    def generate(context, builder, signature, arguments):
        vector = arguments[0]
        while vector.type.count > 1:
            vector = builder.fadd(*halves_of(builder, vector))
        return builder.extract_element(vector, ir.Constant(INT32, 0))

    return types.float32(x), generate


@intrinsic
def largest_lane(typing_context, x):
    """The largest of the 16 lanes."""

    def generate(context, builder, signature, arguments):
        vector = arguments[0]
        while vector.type.count > 1:
            low, high = halves_of(builder, vector)
            vector = builder.select(builder.fcmp_ordered("<", low, high), high, low)
        return builder.extract_element(vector, ir.Constant(INT32, 0))

    return types.float32(x), generate


def halves_of(builder: Any, vector: Any) -> list[Any]:
    """The lower and the upper half of a vector's lanes."""
    count = vector.type.count // 2
    lanes = [ir.Constant(ir.VectorType(INT32, count), list(range(first, first + count))) for first in (0, count)]
    return [builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen) for chosen in lanes]


@intrinsic
def full(typing_context, value):
    """A float32 in every lane."""

    def generate(context, builder, signature, arguments):
        return spread(builder, arguments[0], FLOATS)

    return floats(types.float32), generate


@intrinsic
def full_words(typing_context, value):
    """An integer in every lane."""

    def generate(context, builder, signature, arguments):
        return spread(builder, arguments[0], WORDS)

    return words(types.uint32), generate


@intrinsic
def shift_left(typing_context, x, bits):
    """x << bits; the number of bits is known when the kernel is compiled."""

    def generate(context, builder, signature, arguments):
        return builder.shl(arguments[0], spread(builder, builder.trunc(arguments[1], INT32), WORDS))

    return words(x, types.int64), generate


@intrinsic
def shift_right(typing_context, x, bits):
    """x >> bits, zeros from the left."""

    def generate(context, builder, signature, arguments):
        return builder.lshr(arguments[0], spread(builder, builder.trunc(arguments[1], INT32), WORDS))

    return words(x, types.int64), generate


@intrinsic
def shift_right_signed(typing_context, x, bits):
    """x >> bits, the sign from the left."""

    def generate(context, builder, signature, arguments):
        return builder.ashr(arguments[0], spread(builder, builder.trunc(arguments[1], INT32), WORDS))

    return words(x, types.int64), generate


@intrinsic
def load_floats(typing_context, array, index):
    """16 float32 from array[index]."""

    def generate(context, builder, signature, arguments):
        where = address(context, builder, signature.args[0], arguments[0], arguments[1], FLOATS)
        return unaligned(builder.load(where, typ=FLOATS))

    return floats(array, types.int64), generate


@intrinsic
def load_words(typing_context, array, index):
    """16 words from array[index]."""

    def generate(context, builder, signature, arguments):
        where = address(context, builder, signature.args[0], arguments[0], arguments[1], WORDS)
        return unaligned(builder.load(where, typ=WORDS))

    return words(array, types.int64), generate


@intrinsic
def load_bfloat16(typing_context, pointer, index):
    """16 bfloat16 numbers, the index-th and those after it from an address, as float32."""

    def generate(context, builder, signature, arguments):
        return bfloat16_from(builder, *arguments)

    return floats(pointer, types.int64), generate


def bfloat16_from(builder: Any, pointer: Any, index: Any) -> Any:
    """Emit code that reads 16 bfloat16 numbers as float32."""
    loaded = builder.zext(unaligned(builder.load(halves_at(builder, pointer, index), typ=HALVES)), WORDS)
    return builder.bitcast(builder.shl(loaded, constant(WORDS, 16)), FLOATS)


def halves_at(builder: Any, pointer: Any, index: Any) -> Any:
    """The place of 16 halves of words, the index-th and those after it from an address."""
    first = builder.inttoptr(pointer, INT16.as_pointer())
    return builder.bitcast(builder.gep(first, [index], source_etype=INT16), HALVES.as_pointer())


@intrinsic
def store_bfloat16(typing_context, pointer, index, vector):
    """Write 16 floats that are exact in bfloat16 as such, the first as the index-th number from an address."""

    def generate(context, builder, signature, arguments):
        pointer, index, vector = arguments
        upper = builder.lshr(builder.bitcast(vector, WORDS), constant(WORDS, 16))
        unaligned(builder.store(builder.trunc(upper, HALVES), halves_at(builder, pointer, index)))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, vector), generate


@intrinsic
def store(typing_context, array, index, vector):
    """Write 16 lanes to array[index]."""

    def generate(context, builder, signature, arguments):
        array, index, vector = arguments
        where = address(context, builder, signature.args[0], array, index, vector.type)
        unaligned(builder.store(vector, where))
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), generate


@intrinsic
def store_halves(typing_context, array, index, vector):
    """Write the lower halves of 16 words to array[index]."""

    def generate(context, builder, signature, arguments):
        array, index, vector = arguments
        halves = builder.trunc(vector, HALVES)
        where = address(context, builder, signature.args[0], array, index, halves.type)
        unaligned(builder.store(halves, where))
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), generate


@intrinsic
def store_bytes(typing_context, array, index, vector):
    """Write the lowest bytes of 16 words to array[index], which has elements of four bytes."""

    def generate(context, builder, signature, arguments):
        array, index, vector = arguments
        where = address(context, builder, signature.args[0], array, index, BYTES)
        unaligned(builder.store(builder.trunc(vector, BYTES), where))
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), generate


@intrinsic
def prefetch(typing_context, array, index):
    """Ask for the cache line of array[index]; the index may lie beyond the end."""

    def generate(context, builder, signature, arguments):
        where = address(context, builder, signature.args[0], arguments[0], arguments[1], INT8)
        options = [ir.Constant(INT32, value) for value in (0, 3, 1)]  # to read, into the first level, data
        call(builder, "llvm.prefetch.p0", ir.VoidType(), [where, *options])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate

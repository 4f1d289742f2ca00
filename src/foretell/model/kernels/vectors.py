"""The instructions of kernels in numba: vectors of 16 lanes, single numbers, and memory at addresses.

Each entry of the tables emits one or a few LLVM instructions. LLVM turns an operation on vectors into one instruction
of AVX-512, two of AVX2 or four of NEON. `Floats` holds float32, `Ints` 32-bit integers. Given tuples with one element
per row, an operation is repeated for each row and returns a tuple; tuples are held in registers.
"""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import models, register_model

from foretell.model.kernels.compiling import FEATURES, intrinsic

LANES = 16
VOID, INT8, INT16, INT32, INT64 = ir.VoidType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT = ir.FloatType()
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)
HALVES, BYTES = ir.VectorType(INT16, LANES), ir.VectorType(INT8, LANES)
HAS_AVX512 = "avx512f" in FEATURES
HAS_VNNI = HAS_AVX512 and "avx512vnni" in FEATURES
HAS_FLOAT16 = "f16c" in FEATURES or platform.machine() in ("aarch64", "arm64")  # instructions that convert float16
HAS_INTEGER_DOTS = HAS_VNNI or "avx2" in FEATURES
ANY, LITERAL = object(), object()  # arguments of any type; integers that are constants in the instruction


class VectorType(types.Type):
    """The numba type of a vector, with its LLVM type."""

    def __init__(self, name: str, llvm_type: ir.VectorType):
        self.llvm_type = llvm_type
        super().__init__(name=name)


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    """A vector is held in registers."""

    def __init__(self, manager: Any, vector: VectorType):
        super().__init__(manager, vector, vector.llvm_type)


floats, ints = VectorType("Floats", FLOATS), VectorType("Ints", INTS)
number, integer, void = types.float32, types.int64, types.void


def operation(returns: Any, *takes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an intrinsic from the function emit(builder, *values). numba casts numbers to `takes`."""

    def make(emit: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(emit)  # numba finds the parameters' names here; it skips the first one
        def define(typing_context: Any, *given: Any) -> Any:
            arguments = [
                each if take is ANY or take is LITERAL or isinstance(each, types.BaseTuple) else take
                for take, each in zip(takes, given, strict=True)
            ]
            rows = count_rows(arguments)
            result = types.UniTuple(returns, rows) if rows and returns is not void else returns
            return result(*arguments), generate

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows = count_rows(signature.args)
            given = list(zip(signature.args, arguments, strict=True))
            results = [emit(builder, *(row_value(builder, *each, row) for each in given)) for row in range(rows or 1)]
            if returns is void:
                return context.get_dummy_value()
            return context.make_tuple(builder, signature.return_type, results) if rows else results[0]

        return intrinsic(prefer_literal=LITERAL in takes)(define)

    return make


def count_rows(arguments: Any) -> int:
    """The length of the tuples among the argument types; 0 if there are none."""
    lengths = {len(each) for each in arguments if isinstance(each, types.BaseTuple)}
    assert len(lengths) <= 1, "tuples of different lengths"
    return max(lengths, default=0)


def row_value(builder: Any, argument: Any, value: Any, row: int) -> Any:
    """The value of an argument for one row; a Python integer for a constant."""
    if isinstance(argument, types.BaseTuple):
        return builder.extract_value(value, row)
    return argument.literal_value if isinstance(argument, types.Literal) else value


# --- operations of several instructions ------------------------------------------------------------------------------


def constant(kind: ir.Type, value: float) -> ir.Constant:
    """A number, or the same number in every lane."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def call(builder: Any, name: str, returns: ir.Type, *arguments: Any) -> Any:
    """Call an operation of LLVM, or a function of the C library."""
    kind = ir.FunctionType(returns, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def pointer(builder: Any, address: Any, index: Any, kind: ir.Type) -> Any:
    """A pointer to a number or vector of this type that begins at the index-th element from an address."""
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    first = builder.inttoptr(address, element.as_pointer())
    return builder.bitcast(builder.gep(first, [index], source_etype=element), kind.as_pointer())


def emit_load(builder: Any, address: Any, index: Any, kind: ir.Type) -> Any:
    """Read a number or vector whose address is a multiple of the element's size."""
    loaded = builder.load(pointer(builder, address, index, kind), typ=kind)
    loaded.align = element_bytes(kind)
    return loaded


def emit_store(builder: Any, address: Any, index: Any, value: Any) -> None:
    """Write a number or vector to an address that is a multiple of the element's size."""
    builder.store(value, pointer(builder, address, index, value.type)).align = element_bytes(value.type)


def element_bytes(kind: ir.Type) -> int:
    """The size of a number, or of one lane of a vector."""
    element: Any = kind.element if isinstance(kind, ir.VectorType) else kind
    return 4 if element == FLOAT else element.width // 8


def emit_broadcast(builder: Any, value: Any) -> Any:
    """A number in every lane."""
    vector = ir.VectorType(value.type, LANES)
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(INT32, 0))
    return builder.shuffle_vector(first, undefined, constant(INTS, 0))


def emit_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""
    return call(builder, "llvm.fma.v16f32", FLOATS, x, y, z)


def bits_like(x: Any) -> ir.Type:
    """The type of the bits of floats."""
    return INTS if x.type == FLOATS else INT32


def emit_quiet_bits(builder: Any, x: Any) -> Any:
    """The bits of x. Every NaN has the same bits, all in the upper half."""
    kind = bits_like(x)
    return builder.select(builder.fcmp_ordered("ord", x, x), builder.bitcast(x, kind), constant(kind, 0x7FC00000))


def emit_round_to_bfloat16(builder: Any, x: Any) -> Any:
    """The nearest bfloat16, ties to even, as float32."""
    bits, kind = emit_quiet_bits(builder, x), bits_like(x)
    last = builder.and_(builder.lshr(bits, constant(kind, 16)), constant(kind, 1))
    raised = builder.add(builder.add(bits, constant(kind, 0x7FFF)), last)
    return builder.bitcast(builder.and_(raised, constant(kind, 0xFFFF0000)), x.type)


def halves_of(builder: Any, vector: Any) -> list[Any]:
    """The lower and the upper half of a vector's lanes."""
    count = vector.type.count // 2
    lanes = [ir.Constant(ir.VectorType(INT32, count), list(range(first, first + count))) for first in (0, count)]
    return [builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen) for chosen in lanes]


def emit_reduce(builder: Any, vector: Any, join: Callable[..., Any]) -> Any:
    """Reduce all lanes with `join`: join the halves of the vector, then the halves of the result, and so on."""
    while vector.type.count > 1:
        vector = join(builder, *halves_of(builder, vector))
    return builder.extract_element(vector, ir.Constant(INT32, 0))


def emit_pairs(builder: Any, halves: Any) -> Any:
    """Reorder each group of four 16-bit numbers to 0, 2, 1, 3, the order of the weights' inputs in AVX2 kernels."""
    order = ir.Constant(INTS, [first + index for first in range(0, LANES, 4) for index in (0, 2, 1, 3)])
    return builder.shuffle_vector(halves, halves, order)


def in_halves(builder: Any, shift: Callable[..., Any], x: Any, bits: int) -> Any:
    """Both halves of each integer shifted by a number of bits."""
    kind = ir.VectorType(INT16, 2 * LANES)
    return builder.bitcast(shift(builder.bitcast(x, kind), constant(kind, bits)), INTS)


def emit_maximum(builder: Any, x: Any, y: Any) -> Any:
    """The larger of x and y; x if either is NaN."""
    return builder.select(builder.fcmp_ordered("<", x, y), y, x)


# --- arithmetic ------------------------------------------------------------------------------------------------------

broadcast = operation(floats, number)(emit_broadcast)
broadcast_int = operation(ints, types.uint32)(emit_broadcast)
zeros = operation(floats, ANY)(lambda builder, rows: constant(FLOATS, 0.0))
add = operation(floats, floats, floats)(lambda builder, x, y: builder.fadd(x, y))
subtract = operation(floats, floats, floats)(lambda builder, x, y: builder.fsub(x, y))
multiply = operation(floats, floats, floats)(lambda builder, x, y: builder.fmul(x, y))
divide = operation(floats, floats, floats)(lambda builder, x, y: builder.fdiv(x, y))
fma = operation(floats, floats, floats, floats)(emit_fma)
maximum = operation(floats, floats, floats)(emit_maximum)
minimum = operation(floats, floats, floats)(
    lambda builder, x, y: builder.select(builder.fcmp_ordered(">", x, y), y, x)  # NaN: x
)
is_larger = operation(floats, floats, floats)(  # 1 where x > y, else 0
    lambda builder, x, y: builder.uitofp(builder.fcmp_ordered(">", x, y), FLOATS)
)
absolute = operation(floats, floats)(lambda builder, x: call(builder, "llvm.fabs.v16f32", FLOATS, x))
reduce_add = operation(number, floats)(
    lambda builder, x: emit_reduce(builder, x, lambda builder, *xs: builder.fadd(*xs))
)
lane = operation(number, floats)(lambda builder, x: builder.extract_element(x, ir.Constant(INT32, 0)))  # the first lane
reduce_max = operation(number, floats)(lambda builder, x: emit_reduce(builder, x, emit_maximum))
add_int = operation(ints, ints, ints)(lambda builder, x, y: builder.add(x, y))
bitwise_and = operation(ints, ints, ints)(lambda builder, x, y: builder.and_(x, y))
bitwise_or = operation(ints, ints, ints)(lambda builder, x, y: builder.or_(x, y))
bitwise_xor = operation(ints, ints, ints)(lambda builder, x, y: builder.xor(x, y))
shift_left = operation(ints, ints, LITERAL)(lambda builder, x, bits: builder.shl(x, constant(INTS, bits)))
shift_right = operation(ints, ints, LITERAL)(lambda builder, x, bits: builder.lshr(x, constant(INTS, bits)))
shift_right_signed = operation(ints, ints, LITERAL)(lambda builder, x, bits: builder.ashr(x, constant(INTS, bits)))
shift_halves_left = operation(ints, ints, LITERAL)(lambda builder, x, bits: in_halves(builder, builder.shl, x, bits))
shift_halves_right = operation(ints, ints, LITERAL)(lambda builder, x, bits: in_halves(builder, builder.ashr, x, bits))

# --- casts -----------------------------------------------------------------------------------------------------------

bits_of = operation(ints, floats)(lambda builder, x: builder.bitcast(x, INTS))
from_bits = operation(floats, ints)(lambda builder, x: builder.bitcast(x, FLOATS))
cast_int = operation(floats, ints)(lambda builder, x: builder.sitofp(x, FLOATS))
quiet_bits = operation(ints, floats)(emit_quiet_bits)
round_to_bfloat16 = operation(floats, floats)(emit_round_to_bfloat16)
round_number = operation(number, number)(emit_round_to_bfloat16)


@operation(floats, floats, floats)
def where_finite(builder: Any, x: Any, y: Any) -> Any:
    """y where x is finite, else 0."""
    is_finite = builder.fcmp_ordered("oeq", builder.fsub(x, x), constant(FLOATS, 0.0))
    return builder.select(is_finite, y, constant(FLOATS, 0.0))


# --- memory: an address and an index in elements ----------------------------------------------------------------------


def load(kind: ir.Type, returns: Any, cast: Callable[..., Any] = lambda builder, loaded: loaded) -> Callable[..., Any]:
    """An operation that reads from address[index]."""
    return operation(returns, integer, integer)(
        lambda builder, address, index: cast(builder, emit_load(builder, address, index, kind))
    )


def store(takes: Any, cast: Callable[..., Any] = lambda builder, value: value) -> Callable[..., Any]:
    """An operation that writes to address[index]."""
    return operation(void, integer, integer, takes)(
        lambda builder, address, index, value: emit_store(builder, address, index, cast(builder, value))
    )


def from_bfloat16(builder: Any, loaded: Any) -> Any:
    """The float32 of bfloat16 bits."""
    wide, kind = (INTS, FLOATS) if loaded.type == HALVES else (INT32, FLOAT)
    return builder.bitcast(builder.shl(builder.zext(loaded, wide), constant(wide, 16)), kind)


def from_float16(builder: Any, loaded: Any) -> Any:
    """The float32 of float16 bits."""
    return builder.fpext(builder.bitcast(loaded, ir.VectorType(ir.HalfType(), LANES)), FLOATS)


def to_bfloat16(builder: Any, value: Any) -> Any:
    """The bits of the nearest bfloat16."""
    rounded, kind = emit_round_to_bfloat16(builder, value), bits_like(value)
    upper = builder.lshr(builder.bitcast(rounded, kind), constant(kind, 16))
    return builder.trunc(upper, HALVES if kind == INTS else INT16)


read_float, write_float = load(FLOAT, number), store(number)
read_bfloat16, write_bfloat16 = load(INT16, number, from_bfloat16), store(number, to_bfloat16)
read_int32, write_int32 = load(INT32, types.int32), store(types.int32)
read_int8 = load(INT8, types.int8)
read_int64 = load(INT64, integer)
load_float, store_float = load(FLOATS, floats), store(floats)
load_float16 = load(HALVES, floats, from_float16)
load_bfloat16, store_bfloat16 = load(HALVES, floats, from_bfloat16), store(floats, to_bfloat16)
load_int = load(INTS, ints)
store_int = store(ints)
store_int16 = store(ints, lambda builder, value: builder.trunc(value, HALVES))  # the lower half of each integer
store_pairs = store(ints, lambda builder, value: emit_pairs(builder, builder.trunc(value, HALVES)))
store_int8 = store(ints, lambda builder, value: builder.trunc(value, BYTES))  # the lowest byte of each integer
broadcast_at = load(FLOAT, floats, emit_broadcast)  # one number in every lane
broadcast_int_at = load(INT32, ints, emit_broadcast)


@operation(void, integer, integer)
def prefetch(builder: Any, address: Any, index: Any) -> None:
    """Prefetch the cache line of the index-th 32-bit word, which may be beyond the end."""
    options = [ir.Constant(INT32, value) for value in (0, 3, 1)]  # for reading, into the first-level cache, data
    call(builder, "llvm.prefetch.p0", VOID, pointer(builder, address, index, INT32), *options)


def fields(names: str, kind: Any = "i8") -> list[tuple[str, Any]]:
    """Fields of a record, by default 64-bit integers, which may be addresses."""
    return [(name, kind) for name in names.split()]


def record_at(dtype: np.dtype) -> Callable[..., Any]:
    """An operation that returns the record of this dtype at an address; its fields are read by name."""
    return operation(from_dtype(dtype), integer)(
        lambda builder, address: builder.inttoptr(address, ir.ArrayType(INT8, dtype.itemsize).as_pointer())
    )


def callback(count: int) -> Callable[..., Any]:
    """An operation that calls the compiled function at an address with this many integers."""

    def emit(builder: Any, function: Any, *arguments: Any) -> None:
        kind = ir.FunctionType(VOID, [INT64] * count)
        builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)

    names = ["builder", "function", *(f"argument{index}" for index in range(count))]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    vars(emit)["__signature__"] = inspect.Signature(parameters)
    return operation(void, *[integer] * (count + 1))(emit)


@operation(integer, ANY)
def address_of(builder: Any, record: Any) -> Any:
    return builder.ptrtoint(record, INT64)


# --- tuples of vectors, one per row ----------------------------------------------------------------------------------


@intrinsic
def indices(typing_context, rows, first, stride):
    """first + r * stride for every row r; only the length of `rows` is used."""

    def generate(context, builder, signature, arguments):
        _, first, stride = arguments
        strides = [builder.mul(stride, ir.Constant(INT64, row)) for row in range(len(signature.return_type))]
        return context.make_tuple(builder, signature.return_type, [builder.add(first, each) for each in strides])

    return types.UniTuple(integer, len(rows))(rows, integer, integer), generate


@intrinsic
def reduce_rows(typing_context, vectors):
    """The sums of the lanes of 16 vectors as one vector; each sum is computed in the same order as in `reduce_add`."""

    def generate(context, builder, signature, arguments):
        parts = [builder.extract_value(arguments[0], row) for row in range(LANES)]
        width = LANES  # lanes per part; a vector holds parts of LANES / width input vectors
        while width > 1:
            width //= 2
            pairs = zip(parts[0::2], parts[1::2], strict=True)
            parts = [sum_halves(builder, one, other, width) for one, other in pairs]
        return parts[0]

    return floats(vectors), generate


def sum_halves(builder: Any, one: Any, other: Any, width: int) -> Any:
    """Add the lower and the upper `width` lanes of each part of two vectors, and concatenate the results."""
    low = [start + lane for start in range(0, 2 * LANES, 2 * width) for lane in range(width)]
    chosen = [ir.Constant(INTS, [lane + shift for lane in low]) for shift in (0, width)]
    return builder.fadd(*(builder.shuffle_vector(one, other, lanes) for lanes in chosen))

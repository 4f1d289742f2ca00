"""Intel's matrix registers (AMX) for kernels in numba: eight tiles of 16 rows of 64 bytes.

`dot(c, a, b)` adds to tile c (rows of 16 float32) the products of tile a (rows of 32 bfloat16) and tile b (16 pairs of
inputs by 16 outputs), with float32 sums; denormal numbers count as zero. `dot_bytes` does so for signed bytes (rows of
64, 16 times four inputs by 16 outputs) with exact sums in int32. The numbers of tiles are constants.
"""

from __future__ import annotations

import ctypes
import sys

from llvmlite import ir
from numba import types

from foretell.model.kernels.compiling import FEATURES, intrinsic
from foretell.model.kernels.numba_vectors import INT8, address, call

INT64 = ir.IntType(64)
REQUEST_PERMISSION, TILE_DATA, ARCH_PRCTL = 0x1023, 18, 158  # Linux, x86-64: arch_prctl(ARCH_REQ_XCOMP_PERM, 18)


def is_permitted() -> bool:
    """True where the processor has AMX and Linux lets this process use it, for which it must ask once."""
    if not {"avx512f", "amx-tile", "amx-bf16", "amx-int8"} <= FEATURES or sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0


HAS_AMX = is_permitted()


@intrinsic
def configure(typing_context, settings):
    """Set the sizes of this thread's tiles: 64 bytes as Intel's manual describes them for `ldtilecfg`."""

    def generate(context, builder, signature, arguments):
        where = address(context, builder, signature.args[0], arguments[0], ir.Constant(INT64, 0), INT8)
        call(builder, "llvm.x86.ldtilecfg", ir.VoidType(), [where])
        return context.get_dummy_value()

    return types.void(settings), generate


@intrinsic
def release(typing_context):
    """Give this thread's tiles back."""

    def generate(context, builder, signature, arguments):
        call(builder, "llvm.x86.tilerelease", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic(prefer_literal=True)
def zero(typing_context, tile):
    """Set a tile to zeros."""

    def generate(context, builder, signature, arguments):
        call(builder, "llvm.x86.tilezero", ir.VoidType(), [ir.Constant(INT8, tile.literal_value)])
        return context.get_dummy_value()

    return types.void(tile), generate


@intrinsic(prefer_literal=True)
def load(typing_context, tile, array, index, stride):
    """Read a tile whose rows begin at array[index] and are `stride` bytes apart."""

    def generate(context, builder, signature, arguments):
        where = address(context, builder, signature.args[1], arguments[1], arguments[2], INT8)
        number = ir.Constant(INT8, tile.literal_value)
        call(builder, "llvm.x86.tileloadd64", ir.VoidType(), [number, where, arguments[3]])
        return context.get_dummy_value()

    return types.void(tile, array, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def store(typing_context, tile, array, index):
    """Write a tile to array[index] and what follows, its rows one after the other."""

    def generate(context, builder, signature, arguments):
        where = address(context, builder, signature.args[1], arguments[1], arguments[2], INT8)
        number = ir.Constant(INT8, tile.literal_value)
        call(builder, "llvm.x86.tilestored64", ir.VoidType(), [number, where, ir.Constant(INT64, 64)])
        return context.get_dummy_value()

    return types.void(tile, array, types.int64), generate


def tile_product(instruction: str):
    """An intrinsic that adds the products of two tiles to a third."""

    @intrinsic(prefer_literal=True)
    def product(typing_context, sums, left, right):
        def generate(context, builder, signature, arguments):
            numbers = [ir.Constant(INT8, tile.literal_value) for tile in (sums, left, right)]
            call(builder, instruction, ir.VoidType(), numbers)
            return context.get_dummy_value()

        return types.void(sums, left, right), generate

    return product


dot = tile_product("llvm.x86.tdpbf16ps")
dot_bytes = tile_product("llvm.x86.tdpbssd")

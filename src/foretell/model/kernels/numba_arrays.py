"""Scratch memory for kernels in numba."""

from __future__ import annotations

import numpy as np
from numba import types

from foretell.model.kernels.compiling import inlined, intrinsic


@inlined
def aligned(count):
    """Memory for this many float32 numbers, at an address that is a multiple of 64."""
    memory = np.empty(count + 16, np.float32)
    first = (64 - memory.ctypes.data % 64) // 4
    return memory[first : first + count]


@intrinsic
def keep(typing_context, array):
    """Keep the memory of an array up to here. numba frees it after its last use, and an address is none."""

    def generate(context, builder, signature, arguments):
        return context.get_dummy_value()

    return types.void(array), generate

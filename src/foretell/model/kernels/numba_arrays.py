"""Scratch memory for kernels in numba."""

from __future__ import annotations

import numpy as np

from foretell.model.kernels.compiling import inlined


@inlined
def aligned_zeros(count):
    """This many float32 zeros, at an address that is a multiple of 64."""
    memory = np.zeros(count + 16, np.float32)
    first = (64 - memory.ctypes.data % 64) // 4
    return memory[first : first + count]


@inlined
def aligned(count):
    """Memory for this many float32 numbers, at an address that is a multiple of 64."""
    memory = np.empty(count + 16, np.float32)
    first = (64 - memory.ctypes.data % 64) // 4
    return memory[first : first + count]

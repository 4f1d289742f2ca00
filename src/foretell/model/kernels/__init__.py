"""Compiled kernels for a CPU: a decoder prepared for generation, its strict form, and what there is to compile.

The rest of the project imports from here alone. numba is imported by the first function that needs it.
"""

from foretell.model.kernels.fast_decoder import (
    compile_kernels,
    compiled_softmax_sums,
    find_obstacle,
    is_compiling,
    is_small,
    needed_kernels,
    prepare_for_generation,
)
from foretell.model.kernels.strict import strict_copy

__all__ = [
    "compile_kernels",
    "compiled_softmax_sums",
    "find_obstacle",
    "is_compiling",
    "is_small",
    "needed_kernels",
    "prepare_for_generation",
    "strict_copy",
]

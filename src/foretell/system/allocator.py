"""Options of glibc's malloc for training and serving. Nothing is set for other allocators or with MALLOC_ variables.

Options have the numbers of malloc.h: M_ARENA_MAX, and in bytes M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

KEEPING = {-3: 2**30, -1: 2**31 - 1, -2: 2**26}
RETURNING = {-3: 2**25, -1: 2**26, -2: 2**17}
ONE_ARENA = {-8: 1}


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """In the block, memory that a step frees stays with the process for the next one; at its end it is returned.

    By default glibc returns large blocks to the kernel, which clears every page of them again for the next step:
    docs/performance.md has the measurements.
    """
    library = adjustable_library()
    if library is None:
        yield
        return
    set_options(library, KEEPING)
    try:
        yield
    finally:
        set_options(library, RETURNING)
        library.malloc_trim(0)


def share_one_arena() -> None:
    """Let all threads that start from now on allocate from one heap, for a process that runs for weeks.

    By default each thread has its own heap, which becomes fragmented: docs/serving-reference.md has the measurements.
    """
    if library := adjustable_library():
        set_options(library, ONE_ARENA)


def return_free_memory() -> None:
    """Return the heap's free memory to the kernel."""
    if library := adjustable_library():
        library.malloc_trim(0)


def adjustable_library() -> ctypes.CDLL | None:
    """glibc, unless the process has another C library or its user chose options."""
    is_chosen = any(name.startswith("MALLOC_") for name in os.environ)
    is_glibc = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    return ctypes.CDLL(None) if is_glibc and not is_chosen else None


def set_options(library: ctypes.CDLL, options: dict[int, int]) -> None:
    for option, value in options.items():
        library.mallopt(option, value)

"""Programs on several threads: phases of work whose tasks the threads claim, waiting for each other between phases.

A phase may begin when all tasks of the phase before are done. Any thread can do any task, so the phases end even if
only one thread runs, and a thread that is interrupted delays one task, not its whole share.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import prange, set_num_threads, types

from foretell.model.kernels.compiling import FEATURES, MAX_THREADS, compiled, compiled_parallel, inlined, intrinsic
from foretell.model.kernels.numba_scalars import call_address
from foretell.model.kernels.numba_vectors import call

INT64 = ir.IntType(64)
KEPT = 2**24  # float32 numbers, 64 MiB: scratch memory of more is freed when a call needs much less
LINE = 16  # float32 numbers of a cache line
COUNTERS = 16  # numbers per phase, so that those of two phases are in different cache lines
PATIENCE = 2000  # rounds, 50 to 100 microseconds: longer than a task, unless its thread was interrupted
RUNNING = threading.Lock()  # one of numba's pools of threads ends the process if two threads use it at once


class ThreadScratch(threading.local):
    """Scratch memory of a thread, used by all its calls: touching new memory took 0.14 ms per call with 16 rows."""

    def __init__(self) -> None:
        self.memory, self.address = np.zeros(0, np.float32), 0
        self.threads = 0  # numba's number of threads for calls of this thread

    def take(self, count: int, zeros: int) -> int:
        """The address, a multiple of 64, of `count` float32, the first `zeros` of them 0; valid until the next call."""
        if not count <= len(self.memory) <= max(KEPT, 4 * count):
            self.memory = np.zeros(0, np.float32)  # freed before there is more
            memory = np.empty(count + LINE, np.float32)
            start = -memory.ctypes.data % 64 // 4
            self.memory = memory[start : start + count]
            self.address = self.memory.ctypes.data
        self.memory[:zeros] = 0
        return self.address

    def use(self, threads: int) -> None:
        """Set numba's number of threads. With any other number the phases end too: any thread does any task."""
        if threads != self.threads:
            set_num_threads(threads)
            self.threads = threads


SCRATCH = ThreadScratch()


def run_on_threads(program: Any, arguments: Sequence[int], phases: int, scratch: int, is_padded: bool) -> None:
    """Run a compiled callback on torch's number of threads (at most those that numba has).

    It is given the address of an array of integers: the number of threads, the address of counters for so many phases,
    the address of `scratch` float32, and the arguments. is_padded: the program reads numbers that it does not write,
    which have to be 0; to write zeros into all took 0.2 ms per call with 16 rows.
    """
    threads = min(torch.get_num_threads(), MAX_THREADS)
    counters = COUNTERS * phases * 2  # two float32 per counter
    memory = SCRATCH.take(counters + scratch, counters + scratch if is_padded else counters)
    numbers = np.array((threads, memory, memory + counters * 4, *arguments), dtype=np.int64)
    if threads == 1:
        start_alone(program.address, numbers)
        return
    with RUNNING:
        SCRATCH.use(threads)
        start(program.address, numbers, threads)


@compiled_parallel
def start(program, numbers, threads):
    """Call a program on all threads."""
    for _ in prange(threads):
        call_address(program, (np.int64(numbers.ctypes.data),))


@compiled
def start_alone(program, numbers):
    """Call a program on this thread."""
    call_address(program, (np.int64(numbers.ctypes.data),))


@inlined
def num_tasks(tiles, threads):
    """How many tasks tiles are divided into: some per thread, so that one that is interrupted is helped."""
    return 1 if threads == 1 else max(1, min(tiles // 2, 4 * threads))


@intrinsic
def increment(typing_context, counters, index):
    """Add 1 to counters[index] and return what it was; seen by all threads in one order."""

    def generate(context, builder, signature, arguments):
        where = builder.gep(builder.inttoptr(arguments[0], INT64.as_pointer()), [arguments[1]], source_etype=INT64)
        return builder.atomic_rmw("add", where, ir.Constant(INT64, 1), "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def current(typing_context, counters, index):
    """counters[index] as other threads left it."""

    def generate(context, builder, signature, arguments):
        where = builder.gep(builder.inttoptr(arguments[0], INT64.as_pointer()), [arguments[1]], source_etype=INT64)
        return builder.load_atomic(where, "seq_cst", 8, typ=INT64)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def pause(typing_context):
    """Let the processor do other things for some cycles."""

    def generate(context, builder, signature, arguments):
        if "sse2" in FEATURES:
            call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(typing_context):
    """Let other threads run on this core."""

    def generate(context, builder, signature, arguments):
        if os.name == "posix":
            call(builder, "sched_yield", ir.IntType(32), [])
        return context.get_dummy_value()

    return types.void(), generate


@inlined
def claim(counters, phase):
    """The next task of a phase."""
    return increment(counters, COUNTERS * phase)


@inlined
def finish(counters, phase):
    """Note that a task of a phase is done."""
    increment(counters, COUNTERS * phase + 8)


@inlined
def wait(counters, phase, tasks):
    """Wait until all tasks of a phase are done."""
    rounds = 0
    while current(counters, COUNTERS * phase + 8) < tasks:
        pause()
        rounds += 1
        if rounds > PATIENCE:
            give_way()

"""Programs on several threads: each phase is a list of tasks that threads claim, with a barrier after it.

Any thread can do any task, so the phases end even if only one thread runs, and an interrupted thread delays one task,
not a fixed share.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from llvmlite import ir
from numba import prange, set_num_threads

from foretell.model.kernels import vectors as v
from foretell.model.kernels.compiling import (
    FEATURES,
    MAX_THREADS,
    Program,
    compiled_parallel,
    compiled_program,
    inlined,
)

KEPT = 2**24  # float32 numbers (64 MiB): more scratch memory than this is freed when a call needs much less
LINE = 16  # float32 numbers in a cache line
COUNTERS = 16  # int64 per phase: two counters in different cache lines
DONE = 8  # the index of the second counter
PATIENCE = 2000  # rounds, 50 to 100 microseconds: longer than a task, unless its thread was interrupted
RUNNING = threading.Lock()  # one of numba's thread pools ends the process if two threads use it at once
# The fields of a program's arguments that `run_on_threads` sets: counters and scratch memory by address
CALL = v.fields("threads counters scratch")


class ThreadScratch(threading.local):
    """Scratch memory of a thread, reused by all its calls: new memory took 0.14 ms per call with 16 rows."""

    def __init__(self) -> None:
        self.memory, self.address = np.zeros(0, np.float32), 0
        self.threads = 0  # numba's number of threads for calls of this thread

    def take(self, count: int, zeros: int) -> int:
        """The address (a multiple of 64) of `count` float32, of which the first `zeros` are 0, until the next call."""
        if not count <= len(self.memory) <= max(KEPT, 4 * count):
            self.memory = np.zeros(0, np.float32)  # free the old memory before allocating more
            memory = np.empty(count + LINE, np.float32)
            start = -memory.ctypes.data % 64 // 4
            self.memory = memory[start : start + count]
            self.address = self.memory.ctypes.data
        self.memory[:zeros] = 0
        return self.address

    def use(self, threads: int) -> None:
        """Set numba's number of threads. The program also ends correctly with any other number."""
        if threads != self.threads:
            set_num_threads(threads)
            self.threads = threads


SCRATCH = ThreadScratch()


def run_on_threads(
    program: Program, arguments: np.ndarray, phases: int, scratch: int, is_padded: bool, is_small: bool = False
) -> None:
    """Run a program on torch's number of threads, but at most numba's; a small program runs on one thread.

    arguments: a record that begins with the fields of CALL; the program gets its address. scratch: its size in float32
    numbers. is_padded: the program reads scratch numbers that it does not write, which must be 0. Zeroing all scratch
    memory took 0.2 ms per call with 16 rows.
    """
    callback = compiled_program(program)
    threads = 1 if is_small else min(torch.get_num_threads(), MAX_THREADS)
    counters = COUNTERS * phases * 2  # two float32 per counter
    memory = SCRATCH.take(counters + scratch, counters + scratch if is_padded else counters)
    arguments["threads"], arguments["counters"], arguments["scratch"] = threads, memory, memory + counters * 4
    if threads == 1:
        callback.ctypes(arguments.ctypes.data)
        return
    with RUNNING:
        SCRATCH.use(threads)
        start(callback.address, arguments.ctypes.data, threads)


call_program = v.callback(1)


@compiled_parallel
def start(program, arguments, threads):
    for _ in prange(threads):
        call_program(program, arguments)


@inlined
def num_tasks(tiles, threads):
    """The number of tasks for tiles: several per thread, so that others can help an interrupted thread."""
    return 1 if threads == 1 else max(1, min(tiles // 2, 4 * threads))


@v.operation(v.integer, v.integer, v.integer)
def increment(builder, counters, index):
    """Add 1 to counters[index] and return the old value; sequentially consistent."""
    counter = v.pointer(builder, counters, index, v.INT64)
    return builder.atomic_rmw("add", counter, ir.Constant(v.INT64, 1), "seq_cst")


@v.operation(v.integer, v.integer, v.integer)
def current(builder, counters, index):
    """The present value of counters[index], as written by any thread."""
    return builder.load_atomic(v.pointer(builder, counters, index, v.INT64), "seq_cst", 8, typ=v.INT64)


@v.operation(v.void)
def pause(builder):
    """Pause for some cycles in a spin loop."""
    if "sse2" in FEATURES:
        v.call(builder, "llvm.x86.sse2.pause", v.VOID)


@v.operation(v.void)
def give_way(builder):
    """Yield this core to other threads."""
    v.call(builder, "sched_yield", v.INT32)


@inlined
def claim(counters, phase):
    """Claim the next task of a phase."""
    return increment(counters, COUNTERS * phase)


@inlined
def finish(counters, phase):
    """Count a task of a phase as done."""
    increment(counters, COUNTERS * phase + DONE)


@inlined
def wait(counters, phase, tasks):
    """Wait until all tasks of a phase are done."""
    rounds = 0
    while current(counters, COUNTERS * phase + DONE) < tasks:
        pause()
        rounds += 1
        if rounds > PATIENCE:
            give_way()

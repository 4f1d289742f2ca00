"""Forked child processes for work that is killed or whose memory is measured. A fork need not import torch again."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Callable
from typing import NoReturn

Work = Callable[[], object]


def fork(work: Work) -> int:
    """Run `work` in a child process that then exits; returns the child's process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads; none is running here
        child_id = os.fork()
    return child_id or run_and_exit(work)


def run_and_exit(work: Work) -> NoReturn:
    """Run `work` and end this process, with exit code 0, or 1 after printing a traceback."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def wait_for(child_id: int) -> int:
    """Wait for a child; returns its exit code, or the negated number of the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child_id, 0)[1])


def time_in_child(work: Work) -> float:
    """Seconds that `work` takes in a child process."""
    started = time.perf_counter()
    wait_for(fork(work))
    return time.perf_counter() - started


def peak_memory_in_child(work: Work) -> int:
    """Peak resident memory, in bytes, of a child process that runs `work`."""
    _, status, usage = os.wait4(fork(work), 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(code)
    return usage.ru_maxrss * 1024

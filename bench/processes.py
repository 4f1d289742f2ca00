"""Copies of a process that do one thing and end: they spare the import of torch, and can be killed and measured."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Callable
from typing import NoReturn

Work = Callable[[], object]


def begin(work: Work) -> int:
    """Start a copy of this process that does something and no more; its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, of which there are none that work
        child = os.fork()
    return child or do_and_leave(work)


def do_and_leave(work: Work) -> NoReturn:
    """Work, and end the process: 0 where that went well, else 1 with the traceback."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def wait_for(child: int) -> int:
    """Its exit code, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def time_of(work: Work) -> float:
    """Seconds in a copy of this process."""
    started = time.perf_counter()
    wait_for(begin(work))
    return time.perf_counter() - started


def measure_peak(work: Work) -> tuple[int, float]:
    """Peak of resident memory in bytes and seconds, of a copy of this process."""
    started = time.perf_counter()
    _, status, usage = os.wait4(begin(work), 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(code)
    return usage.ru_maxrss * 1024, time.perf_counter() - started

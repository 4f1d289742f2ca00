"""Child processes, forked so that they need not import torch again; what other programs use of the machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

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
    return peak_of(fork(work))


def peak_of(child_id: int) -> int:
    """Wait for a child; returns its peak resident memory in bytes. A child that failed ends this process too."""
    _, status, usage = os.wait4(child_id, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(code)
    return usage.ru_maxrss * 1024


def cpu_seconds(process_id: int) -> float:
    """User and system time of all threads of a process so far; not a number where there is no /proc."""
    file = Path(f"/proc/{process_id}/stat")
    fields = file.read_text(encoding="utf-8").rpartition(")")[2].split() if file.exists() else []
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else float("nan")


def free_port() -> int:
    """A port of this machine that nothing uses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def serving(model: str, *options: str) -> Iterator[tuple[int, int]]:
    """Serve a model: the port, and the id of the process."""
    port = free_port()
    command = [sys.executable, "-m", "foretell", "serve", model, "--port", str(port), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while (line := process.stderr.readline()) != "ready\n":
                if not line:
                    raise RuntimeError(f"the server ended with {process.wait()}")
            yield port, process.pid
        finally:
            process.terminate()


@dataclass(frozen=True)
class Child:
    """A child process that computes a value for JSON while this one goes on."""

    process_id: int
    reading_end: int

    @classmethod
    def start(cls, work: Work) -> Child:
        """A child that computes `work()`."""
        reading_end, writing_end = os.pipe()

        def compute() -> None:
            with os.fdopen(writing_end, "w") as pipe:
                json.dump(work(), pipe)

        child = cls(fork(compute), reading_end)
        os.close(writing_end)
        return child

    def result(self) -> tuple[Any, int]:
        """Wait for the child; returns its value, and its peak resident memory in bytes."""
        with os.fdopen(self.reading_end) as pipe:
            text = pipe.read()
        peak = peak_of(self.process_id)
        return json.loads(text), peak

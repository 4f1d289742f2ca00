"""The command line in forks of a process that has already imported it; they start in milliseconds instead of seconds.

For servers and signals. Tests of imports, of closed streams and of the start itself start Python.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

THREADS = {"OMP_NUM_THREADS": "1"}  # as in the tests, with which results are compared bit by bit


class Original:
    """The process that is copied; it writes the answer to each line that it reads."""

    def __init__(self) -> None:
        command, pipe = [sys.executable, "-P", __file__], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | THREADS)
        self.lock = threading.Lock()

    def ask(self, **request: Any) -> int | None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with self.lock:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

    def start(self, arguments: list[str], messages: Path, folder: Path | None = None) -> Warm:
        """`foretell ARGUMENTS` with its stderr in a file."""
        pid = self.ask(
            arguments=arguments,
            messages=str(messages),
            folder=str(folder or Path.cwd()),
            environment=os.environ | THREADS,
        )
        assert pid is not None
        return Warm(self, pid)

    def close(self) -> None:
        self.process.communicate()


class Warm:
    """A copy, as a `subprocess.Popen`."""

    def __init__(self, original: Original, pid: int):
        self.original, self.pid = original, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.original.ask(ended=self.pid)
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# --- in the process that is copied -----------------------------------------------------------------------------------


IMPORTED = [  # what a command imports when it needs it
    *("torch._dynamo", "numba", "matplotlib.figure"),
    *("foretell.loading", "foretell.inference.completion", "foretell.pretraining.pretrain"),
    *("foretell.serving.run", "foretell.serving.server"),
]


def answer_requests() -> None:
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):  # of an optional dependency
            importlib.import_module(name)
    from foretell.cli import main as entry

    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif (answer := os.fork()) == 0:
            become(**request)
            entry.IMPORTED = time.monotonic()  # the minutes of a training are counted from here
            entry.main(request["arguments"])
        print(json.dumps(answer), flush=True)


def become(arguments: list[str], messages: str, folder: str, environment: Mapping[str, str]) -> None:
    """Take what a new process would get; other streams than stderr lead nowhere."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, path in enumerate((os.devnull, os.devnull, messages)):
        opened = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        open(descriptor, mode, closefd=False, encoding="utf-8")  # noqa: SIM115 - open until the process ends
        for descriptor, mode in enumerate("rww")
    )
    sys.argv = ["foretell", *arguments]


if __name__ == "__main__":
    answer_requests()

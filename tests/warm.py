"""The command line in forks of a process that has already imported it; they start in milliseconds instead of seconds.

Python makes its standard streams from descriptors that may be closed; so do the copies. Tests of imports and of the
start itself start Python.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

LARGEST = 100_000  # bytes of a message
# Number of a standard stream -> a descriptor of the test, or a file; None: it is closed. Others lead nowhere
Streams = Mapping[int, int | str | None]
THREADS = {"OMP_NUM_THREADS": "1"}  # as in the tests, with which results are compared bit by bit


class Original:
    """The process that is copied; it answers each message."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__], stdin=theirs.fileno(), env=os.environ | THREADS
        )
        theirs.close()
        self.lock = threading.Lock()

    def ask(self, descriptors: Sequence[int] = (), **request: Any) -> int | None:
        with self.lock:
            socket.send_fds(self.socket, [json.dumps(request).encode()], descriptors)
            return json.loads(self.socket.recv(LARGEST))

    def copy(
        self,
        arguments: list[str],
        streams: Streams,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        program: Path | None = None,
    ) -> Warm:
        """`foretell ARGUMENTS`, or a Python program, with these standard streams."""
        pid = self.ask(
            [stream for stream in streams.values() if isinstance(stream, int)],
            arguments=arguments,
            streams=list(streams.items()),
            folder=str(folder or Path.cwd()),
            environment=os.environ | THREADS | (environment or {}),
            program=program and str(program),
        )
        assert pid is not None
        return Warm(self, pid)

    def start(self, arguments: list[str], messages: Path, folder: Path | None = None) -> Warm:
        """`foretell ARGUMENTS` with its stderr in a file."""
        return self.copy(arguments, {2: str(messages)}, folder)

    def run(
        self,
        arguments: list[str],
        streams: Streams | None = None,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        program: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """The outcome, with all that was written to stdout and stderr if these are not among the streams."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            captured: Streams = {1: out.fileno(), 2: err.fileno(), **(streams or {})}
            code = self.copy(arguments, captured, folder, environment, program).wait()
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read(), err.read())

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


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
    *("foretell.serving.run", "foretell.serving.server", "foretell.distributed.placement"),
]


def answer_requests() -> None:
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):  # of an optional dependency
            importlib.import_module(name)
    gc.freeze()  # copies do not look for garbage among the modules
    from foretell.cli import main as entry

    asked = socket.socket(fileno=0)
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, LARGEST, 3)
        if not message:
            return
        request = json.loads(message)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif (answer := os.fork()) == 0:
            asked.detach()
            program = request.pop("program")
            become(descriptors=descriptors, **request)
            if program:
                sys.path.insert(0, str(Path(program).parent))
                end(runpy.run_path, program, None, "__main__")
            entry.IMPORTED = time.monotonic()  # the minutes of a training are counted from here
            end(entry.main, request["arguments"])
        for descriptor in descriptors:
            os.close(descriptor)
        asked.send(json.dumps(answer).encode())


def end(work: Callable[..., object], *arguments: object) -> NoReturn:
    """Do the work and end as Python does, but for taking all modules apart, which takes two seconds."""
    code = 0
    try:
        work(*arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # pyrefly: ignore[missing-attribute] - lets pools end, and waits for threads
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        with contextlib.suppress(OSError):
            traceback.print_exc()
        code = 120
    os._exit(code)


def become(
    arguments: list[str],
    streams: list[tuple[int, int | str | None]],
    folder: str,
    environment: Mapping[str, str],
    descriptors: list[int],
) -> None:
    """Take what a new process would get."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    for number, stream in streams:
        if stream is None:
            os.close(number)
            continue
        opened = os.open(stream, os.O_RDWR | os.O_APPEND) if isinstance(stream, str) else descriptors.pop(0)
        os.dup2(opened, number)
        os.close(opened)
    os.close(nowhere)
    sys.stdin, sys.stdout, sys.stderr = map(standard_stream, range(3), "rww")
    sys.argv = ["foretell", *arguments]


def standard_stream(number: int, mode: str) -> Any:
    """As Python opens it; None where the descriptor is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    return open(
        number,
        mode,
        buffering=1 if number == 2 or os.isatty(number) else -1,
        closefd=False,
        encoding=os.environ.get("PYTHONIOENCODING", "utf-8"),
        errors="backslashreplace" if number == 2 else "strict",
    )


if __name__ == "__main__":
    answer_requests()

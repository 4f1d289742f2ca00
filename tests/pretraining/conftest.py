"""Shared by the tests of whole trainings: a tiny run, processes that die, disks that fail."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import pytest
import torch

from foretell.data.documents import TextDocument
from foretell.errors import ForetellError
from foretell.generation.batch_generation import continue_prompt
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.request import TextRequest
from foretell.runs.record import MEASURED
from foretell.session import session
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter
from foretell.storage import safetensors_files

TEXT = "The cat sat on the mat, and the dog sat on the log.\n" * 12
REFUSED, BROKEN = 10, 99  # exit codes of a forked process: an error in one line; any other


class Lines(logging.Handler):
    """Collects the lines of the log while it is open, also in a forked process."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> Self:
        self.logger = logging.getLogger("foretell")
        self.level = self.logger.level
        self.logger.addHandler(self)
        self.logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self)
        self.logger.setLevel(self.level)


def tiny_request(out: Path, **training: Any) -> TextRequest:
    """Four steps with all that resuming could get wrong: accumulation, dropout, bfloat16, a decay by path."""
    model = {"num_layers": 1, "num_heads": 1, "width": 8, "context_length": 8, "dropout": 0.2}
    settings = {
        "steps": 4,
        "batch_size": 4,
        "gradient_accumulation_steps": 2,
        "checkpoint_every": 2,
        "evaluate_every": 2,
        "evaluation_tokens": 16,
        "weight_decay_by_path": {"embed.**": 0.0},
        "schedule": "linear",
    }
    return TextRequest(
        source=lambda: [TextDocument("cats.txt", TEXT)],
        names=["cats.txt"],
        out=out,
        size="toy",
        overrides={"model": model, "tokenizer": {"kind": "bytes"}, "training": {**settings, **training}},
        device="cpu",
        dtype="bfloat16",
    )


def train(out: Path, **training: Any) -> list[str]:
    """Start or resume the tiny run; returns the lines of the log."""
    with Lines() as log:
        run_training(TextTraining(tiny_request(out, **training), continue_prompt), Reporter(), resume=True)
    return log.lines


def in_a_process(work: Callable[[], object]) -> int:
    """Do something in a copy of this process; its exit code, or the negative number of the signal that ended it."""
    return wait_for(begin(work))


def killed_after(seconds: float, work: Callable[[], object]) -> int:
    """Do something in a copy of this process that is killed after a while, unless it has ended."""
    child = begin(work)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return wait_for(child)


def wait_for(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def begin(work: Callable[[], object]) -> int:
    """Start a copy of this process that does one thing; its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of this process are idle
        child = os.fork()
    return child or do_and_leave(work)


def do_and_leave(work: Callable[[], object]) -> NoReturn:
    torch.set_num_threads(1)  # a fork has none of OpenMP's other threads; waiting for one never ends
    code = BROKEN
    try:
        work()
        code = 0
    except (ForetellError, OSError) as error:
        print(error, file=sys.stderr)
        code = REFUSED if "\n" not in str(error) else BROKEN
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def die() -> None:
    """As by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken_disk() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@dataclass
class Faults:
    """Lets the file operations of a process through until one fails in some way."""

    operations: int
    fail: Callable[[], None]

    def install(self) -> None:
        """Not undone, so in a process of its own."""
        for owner, name in OPERATIONS:
            setattr(owner, name, self._counted(getattr(owner, name), leaves_half=name in WRITES))

    def _counted(self, operation: Callable, leaves_half: bool) -> Callable:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.operations -= 1
            if self.operations != -1:
                return operation(*arguments, **options)
            if leaves_half:
                operation(*arguments, **options)
                path = next(argument for argument in arguments if isinstance(argument, Path))
                os.truncate(path, path.stat().st_size // 2)
            return self.fail()

        return counted


WRITES = ("save_file", "write_text")
OPERATIONS: list[tuple[Any, str]] = [
    *((os, name) for name in ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir")),
    *((io, "open"), (safetensors_files, "save_file"), (Path, "write_text")),
]


def final_state(run: Path) -> dict[str, Any]:
    """Everything that a run ends with, except how long it took."""
    last = max((run / "checkpoints").glob("step-*"))
    training = json.loads((last / "training.json").read_text())
    del training["progress"]["seconds"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for measured in MEASURED:
            del line[measured]
    return {
        "weights": (last / "model.safetensors").read_bytes(),
        "moments": (last / "optimizer.safetensors").read_bytes(),
        "training": training,
        "metrics": lines,
        "names": sorted(path.name for path in run.iterdir()),
        "samples": {path.name: path.read_text() for path in (run / "samples").iterdir()},
    }


class Tiny:
    """The tiny training, as a fixture since tests cannot import this file."""

    REFUSED = REFUSED
    KINDS: ClassVar[dict[str, Callable[[], None]]] = {"killed": die, "full disk": no_space, "broken disk": broken_disk}
    request = staticmethod(tiny_request)
    train = staticmethod(train)
    in_a_process = staticmethod(in_a_process)
    killed_after = staticmethod(killed_after)
    final_state = staticmethod(final_state)

    def fails(self, work: Callable[[], object], operations: int, kind: str) -> int:
        """Do something in a process whose file operation of that number fails; its exit code."""

        def failing() -> None:
            Faults(operations, self.KINDS[kind]).install()
            work()

        return in_a_process(failing)

    def operations(self, work: Callable[[], object]) -> int:
        """How many file operations there are in something, which is done in a process."""
        faults = Faults(0, broken_disk)

        def counting() -> None:
            faults.operations = -2  # past the one that fails
            faults.install()
            work()
            os._exit(-2 - faults.operations)

        return in_a_process(counting)


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the curve takes longer than these trainings."""
    monkeypatch.setattr(session, "draw_curve", lambda *_: None)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run without any failure; made in this process, so that copies of it start warm."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "false")  # threads would be missing in the copies
        patch.setattr(session, "draw_curve", lambda *_: None)
        train(out)
    return out

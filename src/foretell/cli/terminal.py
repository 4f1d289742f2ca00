"""Output: results to stdout, everything else to stderr; the library's log and progress; loading with a message."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.device import DeviceName, DtypeName
    from foretell.language_model import LanguageModel

# Seconds between two lines of progress, on a terminal and in a log
TERMINAL_SECONDS, PLAIN_SECONDS = 0.2, 10.0
WIDTH = 78


@cache
def results() -> Console:
    """Standard output, without wrapping or highlighting. Rich honours NO_COLOR and FORCE_COLOR."""
    from rich.console import Console

    class Results(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # as print does; rich would leave with exit code 1

    return Results(highlight=False, soft_wrap=True, emoji=False, markup=False)


@cache
def messages() -> Console:
    """Standard error, for everything that is not a result. When its reader closes it, the work continues quietly."""
    from rich.console import Console

    class Messages(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            # Discard what is still buffered; Python would fail on it when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    return Messages(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)


def note(text: str) -> None:
    """Print a line on stderr."""
    messages().print(text, style="dim")


class NoteHandler(logging.Handler):
    """Prints what the library logs as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextmanager
def library_notes_on_stderr() -> Iterator[None]:
    """Show the library's notes (its log from level INFO) while the block runs."""
    logger, handler = logging.getLogger("foretell"), NoteHandler()
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


def fail(message: str, exit_code: int) -> int:
    """Print an error as one line on stderr and return the exit code."""
    one_line = " ".join(str(message).split())
    if sys.stderr is not None:  # print would take stdout instead
        print(f"foretell: {one_line}", file=sys.stderr)
    return exit_code


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on stdout."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


class ProgressLine:
    """Progress of a long computation: one line on a terminal, overwritten; a line now and then in a log.

    Call it with (done, total). The line is erased when the block ends.
    """

    def __init__(self, what: str):
        self.what = what
        self.console = messages()
        self._last = time.monotonic()
        self._seconds = TERMINAL_SECONDS if self.console.is_terminal else PLAIN_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.console.print(" " * WIDTH, end="\r")

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._last < self._seconds:
            return
        self._last = time.monotonic()
        line = f"{self.what}: {done:,} of {total:,} ({done / max(1, total):.0%})"
        end = "\r" if self.console.is_terminal else "\n"
        self.console.print(line.ljust(WIDTH) if end == "\r" else line, style="dim", end=end)


def open_model(argument: str, device: DeviceName, dtype: DtypeName) -> LanguageModel:
    """Load a model; one line on stderr before it, and one with what was chosen after it."""
    console = messages()
    console.print(f"loading {argument}", style="dim", end="\r" if console.is_terminal else "\n")
    sys.stderr.flush()
    from foretell.loading import load

    model = load(argument, device, dtype)
    for line in model.notes:
        note(line)
    parameters = sum(parameter.numel() for parameter in model.decoder.parameters())
    precision = str(model.dtype).removeprefix("torch.")
    console.print(f"{argument}: {parameters:,} parameters on {model.device.type} in {precision}", style="dim")
    for line in model.tokenizer.notes:
        note(line)
    return model

"""What goes where: results to stdout, everything else to stderr, colours only where they are wanted."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.device import DeviceName, DtypeName
    from foretell.language_model import LanguageModel


@cache
def results() -> Console:
    """Standard output: wraps nothing and guesses no colours. NO_COLOR and FORCE_COLOR are honoured by rich."""
    from rich.console import Console

    class Results(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # as print does; rich would leave with exit code 1

    return Results(highlight=False, soft_wrap=True, emoji=False, markup=False)


@cache
def messages() -> Console:
    """Standard error, for all that is not a result; once nobody reads it, it is quiet and the work goes on."""
    from rich.console import Console

    class Messages(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            # What is still buffered goes nowhere; otherwise Python fails on it when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    return Messages(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)


def note(text: str) -> None:
    """A line on stderr."""
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
    """An error as one line on stderr; hands the exit code through."""
    one_line = " ".join(str(message).split())
    if sys.stderr is not None:  # print would take stdout instead
        print(f"foretell: {one_line}", file=sys.stderr)
    return exit_code


def print_json(value: Any) -> None:
    """One JSON object on one line of stdout."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def open_model(argument: str, device: DeviceName, dtype: DtypeName) -> LanguageModel:
    """Load a model, saying at once that it is being loaded and then what was chosen."""
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

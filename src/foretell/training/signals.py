"""Ctrl-C and SIGTERM: the first ends training after the step it falls in, the second stops at once."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Self

from foretell.errors import Interrupted


class StopSignal:
    """While open, notes a signal instead of dying by it; `number` is the one that came, or None."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._previous: dict[int, signal.Handlers | signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            _say("stopping after this step; once more stops now")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise Interrupted("stopped by SIGTERM", 128 + number)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended: 128 and the signal's number."""
        return 128 + (self.number or 0)


def _say(line: str) -> None:
    """A line on stderr; lost where stderr is closed, or was just being written when the signal came (RuntimeError)."""
    if sys.stderr is not None:
        with suppress(OSError, RuntimeError, ValueError):
            print(line, file=sys.stderr, flush=True)

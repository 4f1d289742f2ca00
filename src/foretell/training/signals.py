"""Ctrl-C and SIGTERM: the first ends training after the step it falls in, the second stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self


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
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended: 128 and the signal's number."""
        return 128 + (self.number or 0)

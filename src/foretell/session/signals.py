"""Ctrl-C, SIGTERM and SIGHUP: the first one ends training after the current step, the second one stops at once."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Self

from foretell.errors import Interrupted

logger = logging.getLogger(__name__)


class StopSignal:
    """While open, records the first signal instead of ending the process; `number` is None before it.

    SIGHUP says that the terminal was closed. Where it is ignored, as under nohup, it stays ignored.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._previous: dict[int, signal.Handlers | signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            # A display that was writing when the signal came refuses a second line (RuntimeError); training continues
            with suppress(OSError, RuntimeError, ValueError):
                logger.warning("stopping after this step; once more stops now")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise Interrupted(f"stopped by {signal.Signals(number).name}", 128 + number)

    @property
    def exit_code(self) -> int:
        """The exit code that shells expect after a signal: 128 plus its number; without one, that of SIGTERM."""
        return 128 + (self.number or signal.SIGTERM)

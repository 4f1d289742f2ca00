"""How far a long computation is, as one line on stderr that is written over, or a line now and then in a log."""

from __future__ import annotations

import time
from typing import Self

from foretell.cli.terminal import messages

TERMINAL_SECONDS, PLAIN_SECONDS = 0.2, 10.0
WIDTH = 78


class ProgressLine:
    """Call it with (done, of how many); on leaving the block the line on the terminal goes away."""

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

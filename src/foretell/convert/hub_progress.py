"""What huggingface_hub shows while it downloads, as plain lines: its progress bar and its warnings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Self

SAY_SECONDS = 2.0

Say = Callable[[str], None]


class Progress:
    """What huggingface_hub takes for a progress bar: a line now and then while a file comes in."""

    def __init__(self, name: str, say: Say, *, total: int | None = None, initial: int = 0, **_: Any):
        self.name, self.say = name, say
        self.total, self.n = total, initial
        self._last = time.monotonic()

    def update(self, n: float | None = 1) -> None:
        self.n += int(n or 0)
        if time.monotonic() - self._last >= SAY_SECONDS:
            self._last = time.monotonic()
            whole = f" of {in_words(self.total)} ({self.n / self.total:.0%})" if self.total else ""
            self.say(f"{self.name}: {in_words(self.n)}{whole}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def refresh(self) -> None:
        pass

    def set_postfix_str(self, text: str, refresh: bool = False) -> None:
        pass


def in_words(size: float) -> str:
    """A size in bytes for people: 1.5 kB, 548 MB."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


class SayHandler(logging.Handler):
    """Warnings, such as that a transfer broke off and goes on, as one line each."""

    def __init__(self, say: Say):
        super().__init__(logging.WARNING)
        self.say = say

    def emit(self, record: logging.LogRecord) -> None:
        self.say(" ".join(record.getMessage().split()))


@contextmanager
def speaking(say: Say) -> Generator[None]:
    """Let the library's warnings go to `say` in place of its own handlers."""
    logger = logging.getLogger("huggingface_hub")
    handlers, propagate = logger.handlers, logger.propagate
    handler: logging.Handler = SayHandler(say)
    logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate

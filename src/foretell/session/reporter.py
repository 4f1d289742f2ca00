"""Structured events of a training, for displays and trackers. Notes to the user go through the log instead."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Self

from foretell.session.task import Task

logger = logging.getLogger(__name__)


class Reporter:
    """Base class that ignores all events. It is open, as a context manager, while a training runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The training has ended, with or without an error."""

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        """`done` of `total` bytes of text are tokenized, after so many seconds."""

    def ready(self, task: Task) -> None:
        """Training begins."""

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        """The metrics after a step (the fields of metrics.jsonl), and the number of steps in all."""

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        """An output of the model after a step."""


class Reporters(Reporter):
    """Passes every event on to several reporters.

    One that cannot write, because its terminal is closed or its disk is full, gets no more events: no training depends
    on its display.
    """

    def __init__(self, reporters: Sequence[Reporter]):
        self.reporters = list(reporters)

    def __enter__(self) -> Self:
        self._each(lambda reporter: reporter.__enter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._each(lambda reporter: reporter.__exit__(*error))

    def _each(self, event: Callable[[Reporter], object]) -> None:
        for reporter in list(self.reporters):
            try:
                event(reporter)
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                self.reporters.remove(reporter)
                logger.warning(f"{type(reporter).__name__} cannot write ({error}); training continues without it")

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        self._each(lambda reporter: reporter.tokenizing(done, total, seconds))

    def ready(self, task: Task) -> None:
        self._each(lambda reporter: reporter.ready(task))

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        self._each(lambda reporter: reporter.metrics(metrics, steps))

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        self._each(lambda reporter: reporter.sample(step, prompt, continuation))

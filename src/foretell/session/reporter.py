"""Structured events of a training, for displays and trackers. Notes to the user go through the log instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretell.session.task import Task


class Reporter:
    """Base class that ignores all events."""

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        """`done` of `total` bytes of text are tokenized, after so many seconds."""

    def ready(self, task: Task) -> None:
        """Training begins."""

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        """The metrics after a step (the fields of metrics.jsonl), and the number of steps in all."""

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        """An output of the model after a step."""


class Reporters(Reporter):
    """Passes every event on to several reporters."""

    def __init__(self, reporters: Sequence[Reporter]):
        self.reporters = reporters

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        for reporter in self.reporters:
            reporter.tokenizing(done, total, seconds)

    def ready(self, task: Task) -> None:
        for reporter in self.reporters:
            reporter.ready(task)

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        for reporter in self.reporters:
            reporter.metrics(metrics, steps)

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        for reporter in self.reporters:
            reporter.sample(step, prompt, continuation)

"""Structured events of a training, for displays and trackers. Notes to the user go through the log instead."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from foretell.errors import UsageError, as_path
from foretell.session.task import Task

logger = logging.getLogger(__name__)


class Reporter:
    """Base class that ignores all events. The context manager is open while a training runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Called when the training ends, with or without an error."""

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        """Called when `done` of `total` bytes of text have been tokenized, after `seconds`."""

    def ready(self, task: Task) -> None:
        """Called when training begins."""

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        """Called with the metrics after a step (the fields of metrics.jsonl) and the total number of steps."""

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        """Called with an output of the model after a step."""


class Reporters(Reporter):
    """Forwards every event to several reporters.

    A reporter that cannot write, because its terminal is closed or its disk is full, gets no more events; the training
    continues.
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


FOLDER = "tensorboard"


class TensorBoardReporter(Reporter):
    """Writes event files while open. Raises UsageError at once if tensorboard is not installed."""

    def __init__(self, run: str | Path):
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError("--report tensorboard needs tensorboard: pip install 'foretell[track]'")
        self.folder = as_path("the run", run) / FOLDER
        self._writer: Any = None

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def writer(self, step: int) -> Any:
        """The event files, opened at the first event, because the run's folder must be empty before."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # an optional dependency, and slow to import

            # purge_step: events that the run wrote after the checkpoint it resumes from are invalid
            self._writer = SummaryWriter(str(self.folder), purge_step=step)
        return self._writer

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        step = metrics["step"]
        for name, value in metrics.items():
            if name != "step" and value is not None:
                self.writer(step).add_scalar(name, value, step)
        self.writer(step).flush()

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        indented = "\n".join(f"    {line}" for line in (prompt + continuation).splitlines())  # shown verbatim
        self.writer(step).add_text(f"sample/{prompt}", indented, step)

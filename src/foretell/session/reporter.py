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
    """Base class that ignores all events. It is open, as a context manager, while a training runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The training has ended, with or without an error."""

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        """`done` of `total` bytes of text are tokenized after `seconds`."""

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


FOLDER = "tensorboard"


class TensorBoardReporter(Reporter):
    """Writes event files while it is open. Without the package tensorboard it raises a `UsageError` at once."""

    def __init__(self, run: str | Path):
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError("--report tensorboard needs tensorboard: pip install 'foretell[track]'")
        self.folder = as_path("the run", run) / FOLDER
        self._writer: Any = None

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def writer(self, step: int) -> Any:
        """The event files, opened with the first event: before that, the run's folder has to be empty."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # an optional dependency, and slow to import

            # purge_step: events that a resumed run wrote after its checkpoint no longer hold
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

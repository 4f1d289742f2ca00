"""Displays of a training: a live bar on a terminal, plain lines elsewhere, output that is updated in a notebook."""

from __future__ import annotations

import html
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from foretell.distributed.launch import is_follower
from foretell.session.reporter import Reporter
from foretell.session.task import Task
from foretell.typesetting.numbers import format_duration
from foretell.typesetting.text import shorten

PLAIN_SECONDS = 5.0  # between plain lines
LABEL = 12  # width of the label column


def choose_display(progress: bool | None) -> list[Reporter]:
    """The display for `progress`: True always shows one, None only on a terminal or in a notebook, False never."""
    if progress is False:
        return []
    if is_notebook():
        return [NotebookReporter()]
    console = standard_error()
    return [make_reporter(console)] if progress or console.is_terminal else []


def is_notebook() -> bool:
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


class DisplayHandler(logging.Handler):
    def __init__(self, console: Console):
        super().__init__(logging.INFO)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.console.print(record.getMessage(), style="dim")
        except (OSError, ValueError):
            self.handleError(record)


@contextmanager
def notes_of_the_log(displays: Sequence[Reporter]) -> Iterator[None]:
    """Show the log "foretell" on a text display inside the block, unless the program has its own log handlers."""
    logger = logging.getLogger("foretell")
    consoles = [] if logger.hasHandlers() else [each.console for each in displays if isinstance(each, PlainReporter)]
    handlers = list(map(DisplayHandler, consoles))
    level = logger.level
    try:
        for handler in handlers:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
        logger.setLevel(level)


def standard_error() -> Console:
    """A console for standard error, without wrapping or highlighting."""
    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)


def make_reporter(console: Console) -> Reporter:
    """The reporter for a console; only the first process has a display."""
    if is_follower():
        return Reporter()
    return LiveReporter(console) if console.is_terminal else PlainReporter(console)


class PlainReporter(Reporter):
    """A line every few seconds, for files and pipes."""

    def __init__(self, console: Console | None = None):
        self.console = console or standard_error()
        self._printed = 0.0
        self.clock = Remaining()

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        if time.monotonic() - self._printed > PLAIN_SECONDS and seconds > PLAIN_SECONDS:
            self._printed = time.monotonic()
            self.console.print(describe_tokenizing(done, total, seconds), style="dim")

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        left = self.clock.update(metrics["step"], steps)
        is_due = time.monotonic() - self._printed > PLAIN_SECONDS or metrics["step"] == steps
        if is_due or metrics["validation_loss"] is not None:
            self._printed = time.monotonic()
            self.console.print(describe(metrics, steps, left))

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        text = Text(shorten(prompt, 30, from_end=True), style="cyan").append(
            shorten(continuation, 160), style="default"
        )
        label, folded = Text(f"  step {step}: ".ljust(LABEL), style="dim"), Table.grid()
        folded.add_row(label, text)
        is_terminal = self.console.is_terminal
        self.console.print(folded if is_terminal else label + text, soft_wrap=not is_terminal)


class LiveReporter(PlainReporter):
    """A progress bar with the newest figures below all other lines."""

    def __init__(self, console: Console | None = None):
        super().__init__(console)
        # No redirection: the console itself writes to sys.stderr, and rich would send that back to the console
        self.live = Live(
            console=self.console, refresh_per_second=8, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        left = self.clock.update(metrics["step"], steps)
        if metrics["validation_loss"] is not None:
            self.console.print(describe(metrics, steps, left))
        self.show_progress(metrics, steps, left)

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        bar = ProgressBar(total=total, completed=done, complete_style="cyan")
        if self.console.is_terminal:
            self.live.update(Group(bar, Text(describe_tokenizing(done, total, seconds), style="dim")))

    def show_progress(self, metrics: dict[str, Any], steps: int, left: str) -> None:
        """The bar and the newest figures below it."""
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_row(ProgressBar(total=steps, completed=metrics["step"], complete_style="cyan"))
        if self.console.is_terminal:
            self.live.update(Group(bar, describe(metrics, steps, left), describe_gauges(metrics)))


class Remaining:
    """The remaining time, estimated from the steps since the display began."""

    def __init__(self) -> None:
        self._start: tuple[int, float] | None = None

    def update(self, step: int, steps: int) -> str:
        """`1:23 left`, or an empty string before the first step was timed."""
        now = time.monotonic()
        if self._start is None:
            self._start = (step, now)
        done, elapsed = step - self._start[0], now - self._start[1]
        if done <= 0 or step >= steps:
            return ""
        return f"{format_duration(elapsed / done * (steps - step))} left"


def describe(metrics: dict[str, Any], steps: int, left: str) -> Text:
    """The newest figures in one line of at most 80 columns."""
    line = Text(f"step {metrics['step']:>{len(str(steps))}}/{steps}", style="bold")
    line.append(f"  loss {metrics['loss']:.3f}", style="not bold")
    if metrics["validation_loss"] is not None:
        line.append(f"  validation {metrics['validation_loss']:.3f}", style="not bold cyan")
    if metrics["tokens_per_second"]:
        line.append(f"  {metrics['tokens_per_second']:,.0f} tokens/s", style="not bold")
    return line.append(f"  {left}" if left else "", style="not bold dim")


def describe_gauges(metrics: dict[str, Any]) -> Text:
    """Further figures in one line of at most 80 columns."""
    parts = [f"learning rate {metrics['learning_rate']:.2g}", f"gradient {metrics['gradient_norm']:.2f}"]
    if metrics["mfu"] is not None:
        parts.append(f"{metrics['mfu']:.0%} MFU")
    return Text("  ".join([*parts, f"{metrics['peak_memory_bytes'] / 2**20:,.0f} MiB"]), style="dim")


def describe_tokenizing(done: int, total: int, seconds: float) -> str:
    """Progress, speed and remaining time of tokenizing."""
    left = format_duration(seconds / max(1, done) * (total - done))
    return f"tokenizing  {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {done / 1e6 / seconds:.1f} MB/s  {left} left"


NOTEBOOK_SECONDS = 0.5  # between updates, because a notebook stores each one
WIDTH = 560  # of the bar, in pixels
# Shows HTML: the first call creates an output, later calls replace it
Show = Callable[[str], None]


class NotebookReporter(Reporter):
    """Shows a training as HTML that is updated with new figures; by default through IPython."""

    def __init__(self, show: Show | None = None):
        self.show = show or ipython_output()
        self.clock = Remaining()
        self.newest: dict[str, Any] = {}
        self.samples: list[tuple[int, str, str]] = []
        self._steps, self._left, self._shown = 1, "", 0.0

    def __exit__(self, *_: object) -> None:
        if self.newest:
            self.show(self.to_html())

    def ready(self, task: Task) -> None:
        self.show("<p>training begins</p>")

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        self._update(lambda: f"<p>{progress_bar(done, total)} {describe_tokenizing(done, total, seconds)}</p>")

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        self.newest, self._steps = metrics, steps
        self._left = self.clock.update(metrics["step"], steps)
        self._update(self.to_html)

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        self.samples = [each for each in self.samples if each[0] == step] + [(step, prompt, continuation)]

    def _update(self, content: Callable[[], str]) -> None:
        if time.monotonic() - self._shown >= NOTEBOOK_SECONDS:
            self._shown = time.monotonic()
            self.show(content())

    def to_html(self) -> str:
        figures = f"{describe(self.newest, self._steps, self._left).plain}  {describe_gauges(self.newest).plain}"
        samples = "".join(
            f"<pre>step {step}: <i>{html.escape(prompt)}</i>{html.escape(continuation)}</pre>"
            for step, prompt, continuation in self.samples
        )
        return f"<div>{progress_bar(self.newest['step'], self._steps)}<pre>{figures}</pre>{samples}</div>"


def ipython_output() -> Show:
    """A function that shows HTML in the notebook's cell and replaces it in later calls."""
    from IPython.display import HTML, display  # pyrefly: ignore[missing-import] - only where IPython runs already

    handles: list[Any] = []

    def show(content: str) -> None:
        if handles:
            handles[0].update(HTML(content))
        else:
            handles.append(display(HTML(content), display_id=True))

    return show


def progress_bar(done: int, total: int) -> str:
    return f'<progress value="{done}" max="{total}" style="width:{WIDTH}px"></progress>'

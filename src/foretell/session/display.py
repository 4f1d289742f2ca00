"""Displays of a training: a live bar on a terminal, plain lines elsewhere, a picture in a notebook."""

from __future__ import annotations

import re
import time
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from foretell.distributed.launch import is_follower
from foretell.session.reporter import Reporter
from foretell.session.task import Task

PLAIN_SECONDS = 5.0  # between plain lines
LABEL = 12  # columns before the text of a line


def standard_error() -> Console:
    """A console for standard error, without wrapping or highlighting."""
    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)


class PlainReporter(Reporter):
    """A line every few seconds, for files and pipes."""

    def __init__(self, console: Console | None = None):
        self.console = console or standard_error()
        self._printed = 0.0
        self.clock = Remaining()
        self.unit = Task.unit

    def ready(self, task: Task) -> None:
        self.unit = task.unit

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        if time.monotonic() - self._printed > PLAIN_SECONDS and seconds > PLAIN_SECONDS:
            self._printed = time.monotonic()
            self.console.print(describe_tokenizing(done, total, seconds), style="dim")

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        left = self.clock.update(metrics["step"], steps)
        is_due = time.monotonic() - self._printed > PLAIN_SECONDS or metrics["step"] == steps
        if is_due or metrics["validation_loss"] is not None:
            self._printed = time.monotonic()
            self.console.print(describe(metrics, steps, left, self.unit))

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        self.console.print(sample_text(step, prompt, continuation))


class LiveReporter(PlainReporter):
    """A progress bar with the newest figures below all other lines."""

    def __init__(self, console: Console | None = None):
        super().__init__(console)
        # Not redirected: the console writes to sys.stderr itself, and rich would send that back to the console
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
            self.console.print(describe(metrics, steps, left, self.unit))
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
            self.live.update(Group(bar, describe(metrics, steps, left, self.unit), describe_gauges(metrics)))


class Remaining:
    """The remaining time, from the steps since the display began."""

    def __init__(self) -> None:
        self._start: tuple[int, float] | None = None

    def update(self, step: int, steps: int) -> str:
        """`1:23 left`, or nothing before the first step was timed."""
        now = time.monotonic()
        if self._start is None:
            self._start = (step, now)
        done, elapsed = step - self._start[0], now - self._start[1]
        if done <= 0 or step >= steps:
            return ""
        return f"{clock(elapsed / done * (steps - step))} left"


def make_reporter(console: Console) -> Reporter:
    """The reporter that suits a console; of many processes only the first one has a display."""
    if is_follower():
        return Reporter()
    return LiveReporter(console) if console.is_terminal else PlainReporter(console)


def describe(metrics: dict[str, Any], steps: int, left: str, unit: str = Task.unit) -> Text:
    """The newest figures in one line of at most 80 columns."""
    line = Text(f"step {metrics['step']:>{len(str(steps))}}/{steps}", style="bold")
    line.append(f"  loss {metrics['loss']:.3f}", style="not bold")
    if metrics["validation_loss"] is not None:
        line.append(f"  validation {metrics['validation_loss']:.3f}", style="not bold cyan")
    if metrics["tokens_per_second"]:
        line.append(f"  {metrics['tokens_per_second']:,.0f} {unit}/s", style="not bold")
    return line.append(f"  {left}" if left else "", style="not bold dim")


def describe_gauges(metrics: dict[str, Any]) -> Text:
    """Further figures in one line of at most 80 columns."""
    parts = [f"learning rate {metrics['learning_rate']:.2g}", f"gradient {metrics['gradient_norm']:.2f}"]
    if metrics["mfu"] is not None:
        parts.append(f"{metrics['mfu']:.0%} MFU")
    return Text("  ".join([*parts, f"{metrics['peak_memory_bytes'] / 2**20:,.0f} MiB"]), style="dim")


def describe_tokenizing(done: int, total: int, seconds: float) -> str:
    """How much of the text is tokenized, how fast, and the remaining time."""
    left = clock(seconds / max(1, done) * (total - done))
    return f"tokenizing  {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {done / 1e6 / seconds:.1f} MB/s  {left} left"


def sample_text(step: int, prompt: str, continuation: str) -> Text:
    """A sample on one line: the prompt dim, the model's continuation bright."""
    text = Text(f"  step {step}: ".ljust(LABEL), style="dim")
    text.append(shorten(prompt, 30, from_end=True), style="not dim cyan")
    return text.append(shorten(continuation, 160), style="not dim")


def shorten(text: str, length: int, *, from_end: bool = False) -> str:
    """Text on one line, cut to a length; tabs, controls and runs of spaces, which make lines ragged, are one space."""
    line = "".join(character if character.isprintable() else " " for character in text.replace("\n", "⏎"))
    line = re.sub(" +", " ", line)
    if len(line) <= length:
        return line
    return "…" + line[-length:] if from_end else line[:length] + "…"


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

"""The display of a training in a notebook: progress, figures and the curve, in one output that updates in place."""

from __future__ import annotations

import html
import time
from collections.abc import Callable
from typing import Any

from foretell.session.display import Remaining, describe, describe_gauges
from foretell.session.plots import Points, points_of
from foretell.session.reporter import Reporter
from foretell.session.task import Task

SECONDS = 0.5  # between updates; a notebook stores every one that it receives
WIDTH, HEIGHT, MARGIN = 560, 180, 44  # of the curve, in pixels

# Shows HTML: the first call makes an output, later calls replace it
Show = Callable[[str], None]


class NotebookReporter(Reporter):
    """Shows a training as HTML that is replaced as new figures come; without `show`, by IPython."""

    def __init__(self, show: Show | None = None):
        self.show = show or ipython_output()
        self.clock = Remaining()
        self.lines: list[dict[str, Any]] = []
        self.samples: list[tuple[int, str, str]] = []
        self._steps, self._left, self._shown, self._unit = 1, "", 0.0, Task.unit

    def __exit__(self, *_: object) -> None:
        if self.lines:
            self.show(self.to_html())

    def ready(self, task: Task) -> None:
        self._unit = task.unit
        self.show("<p>training begins</p>")

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        self._update(
            lambda: f"<p>{progress_bar(done, total)} tokenizing, {done / 1e6:,.0f} of {total / 1e6:,.0f} MB</p>"
        )

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        self.lines.append(metrics)
        self._steps, self._left = steps, self.clock.update(metrics["step"], steps)
        self._update(self.to_html)

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        self.samples = [each for each in self.samples if each[0] == step] + [(step, prompt, continuation)]

    def _update(self, content: Callable[[], str]) -> None:
        if time.monotonic() - self._shown >= SECONDS:
            self._shown = time.monotonic()
            self.show(content())

    def to_html(self) -> str:
        """The bar, the newest figures, the curve and the newest samples."""
        newest = self.lines[-1]
        figures = f"{describe(newest, self._steps, self._left, self._unit).plain}  {describe_gauges(newest).plain}"
        samples = "".join(
            f"<pre>step {step}: <i>{html.escape(prompt)}</i>{html.escape(continuation)}</pre>"
            for step, prompt, continuation in self.samples
        )
        bar, curve = progress_bar(newest["step"], self._steps), curve_svg(self.lines)
        return f"<div>{bar}<pre>{figures}</pre>{curve}{samples}</div>"


def ipython_output() -> Show:
    """An output of the notebook's cell that later calls replace."""
    from IPython.display import HTML, display  # pyrefly: ignore[missing-import] - only where IPython runs already

    handles: list[Any] = []

    def show(content: str) -> None:
        if handles:
            handles[0].update(HTML(content))
        else:
            handles.append(display(HTML(content), display_id=True))

    return show


def progress_bar(done: int, total: int) -> str:
    """An HTML progress bar."""
    return f'<progress value="{done}" max="{total}" style="width:{WIDTH}px"></progress>'


def curve_svg(lines: list[dict[str, Any]]) -> str:
    """Training loss (thin) and validation loss (with markers) over steps, as SVG; empty before the second point."""
    training, validation = (points_of(lines, key, "step") for key in ("loss", "validation_loss"))
    points = training + validation
    if len({x for x, _ in points}) < 2:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x = MARGIN + (point[0] - left) / (right - left) * (WIDTH - MARGIN - 8)
        return x, 8 + (high - point[1]) / ((high - low) or 1.0) * (HEIGHT - 32)

    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in map(at, validation))
    texts = ((4, 14, f"{high:.3f}"), (4, HEIGHT - 24, f"{low:.3f}"), (MARGIN, HEIGHT - 4, f"step {left:,.0f}"))
    labels = "".join(f'<text x="{x}" y="{y}">{text}</text>' for x, y, text in texts)
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="loss by step" font-size="11" '
        f'fill="currentColor">{labels}<text x="{WIDTH - 8}" y="{HEIGHT - 4}" text-anchor="end">{right:,.0f}</text>'
        f"{polyline(list(map(at, training)), 0.5)}{polyline(list(map(at, validation)), 1.5)}{circles}</svg>"
    )


def polyline(points: Points, width: float) -> str:
    """A line through points, in pixels."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="{width}"/>'

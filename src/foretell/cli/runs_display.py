"""The display of runs: a table, their curves, and the settings that differ."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from foretell.cli.terminal import results
from foretell.runs.summary import DONE, Summary, warning_about
from foretell.session.plots import MARKS, METRICS, Metrics, plot, points_of, shared_axis, shared_metric

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
WIDTH = 80
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAME, SETTING = 14, 36  # columns
HEADER = ("size", "weights", "steps", "tokens", "loss", "bits", "state", "changed")
WIDTHS = (6, 7, 9, 6, 7, 5, 10, 8)


def show_list(summaries: Sequence[Summary], labels: Sequence[str], *, marked: bool) -> None:
    """A line for each run, with its mark if curves follow. The loss is the best validation loss, bits those per byte.

    Where the losses of all do not compare, those that do have the same letter.
    """
    console = results()
    if not summaries:
        return
    console.print(f"{'run':<{NAME}}" + columns(HEADER), style="dim")
    letters = letters_of(summaries)
    for index, (summary, label) in enumerate(zip(summaries, labels, strict=True)):
        name = Text(f"{MARKS[index]} ", style=COLOURS[index]) if marked else Text()
        name.append(fitted(label, NAME - 1 - name.cell_len), style="not dim")
        name.append(" " * (NAME - name.cell_len) + columns(cells(summary, letters[index])), style="default")
        console.print(name)
    if any(letters):
        console.print("losses with different letters do not compare: their held-out tokens differ", style="dim")


def letters_of(summaries: Sequence[Summary]) -> list[str]:
    """A letter for each run, the same for runs with the same held-out tokens; empty where all losses compare."""
    digests = [summary.held_out for summary in summaries if summary.best_validation_loss is not None]
    groups = {digest: LETTERS[index % len(LETTERS)] for index, digest in enumerate(dict.fromkeys(digests))}
    if len(groups) < 2:
        return [""] * len(summaries)
    return [groups[summary.held_out] if summary.best_validation_loss is not None else "" for summary in summaries]


def columns(values: Sequence[str]) -> str:
    """Cells of the table, aligned to the right."""
    return "".join(f" {value:>{width}}" for value, width in zip(values, WIDTHS, strict=True)).rstrip()


def cells(summary: Summary, letter: str = "") -> tuple[str, ...]:
    """The cells of a run's line after its name."""
    steps = f"{summary.steps}" if summary.state == DONE else f"{summary.step}/{summary.steps}"
    loss = "-" if summary.best_validation_loss is None else f"{summary.best_validation_loss:.3f}{letter}"
    bits = "-" if summary.bits_per_byte is None else f"{summary.bits_per_byte:.3f}"
    state = {"stopped early": "early stop"}.get(summary.state, summary.state)
    return (
        fitted(summary.size, WIDTHS[0]),
        "-" if summary.parameters is None else short_number(summary.parameters),
        steps,
        short_number(summary.tokens),
        loss,
        bits,
        state,
        format_time(summary.changed),
    )


def short_number(number: float) -> str:
    """1,234,567 as 1.2M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * limit:
            value = number / limit
            return f"{value:.1f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"
    return f"{number:.0f}"


def format_time(seconds: float) -> str:
    """The time of day, for today; else the date."""
    then, now = time.localtime(seconds), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%y-%m-%d", then)


def fitted(text: str, width: int) -> str:
    """Text padded to a width, or shortened at its beginning, which names the folder."""
    if cell_len(text) <= width:
        return text
    while cell_len(text) > width - 1:
        text = text[1:]
    return set_cell_size("…" + text, width)


def show_comparison(runs: Sequence[Metrics], labels: Sequence[str], differences: dict[str, list[Any]]) -> None:
    """The curves in one plot, and below it the settings that differ."""
    console = results()
    key, axis = shared_metric(runs), shared_axis(runs)
    drawn = plot([points_of(metrics, key, axis) for metrics in runs], axis, results().width)
    console.print()
    console.print(f"{METRICS[key]}, in nats per token" if drawn else "nothing was measured yet")
    for line in drawn.splitlines():
        console.print(coloured(line))
    if warning := warning_about(differences):
        console.print(warning, style="yellow")
    if len(runs) > 1:
        console.print()
        console.print("what differs" if differences else "all settings are the same")
    for name, values in differences.items():
        show_difference(console, name, values)


def coloured(line: str) -> Text:
    """A line of the plot with each mark in its run's colour."""
    text = Text(line)
    for mark, colour in zip(MARKS, COLOURS, strict=True):
        text.highlight_regex(mark, colour)
    return text


def show_difference(console: Console, name: str, values: Sequence[Any]) -> None:
    """A setting's values on one line, or one per line if that is too long."""
    parts = [f"{mark} {format_setting(value)}" for mark, value in zip(MARKS, values, strict=False)]
    line = f"{name:<{SETTING}}" + "  ".join(f"{part:<10}" for part in parts).rstrip()
    for shown in [line] if len(line) <= WIDTH else [name, *(f"  {part}" for part in parts)]:
        console.print(coloured(shown))


def format_setting(value: Any) -> str:
    """A value of a setting for people."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None or value == {} else str(value)

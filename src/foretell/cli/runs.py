"""`foretell runs`: list the runs of a folder, or compare runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from foretell.cli.arguments import Json
from foretell.cli.terminal import messages, note, print_json, results
from foretell.errors import DataError, ForetellError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.runs.run import Run
    from foretell.runs.summary import Summary
    from foretell.session.plots import Metrics

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
WIDTH = 80
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAME, SETTING = 14, 36  # columns
HEADER = ("size", "weights", "steps", "tokens", "loss", "bits", "state", "changed")
WIDTHS = (6, 7, 9, 6, 7, 5, 10, 8)


def runs(
    *names: Annotated[str, Parameter(help="Runs, or one folder of them (none: ./runs).")],
    png: Annotated[Path | None, Parameter(help="Draw the loss curves of these runs into a file.")] = None,
    delete: Annotated[
        bool, Parameter(negative="", show_default=False, help="Delete these runs, after a question.")
    ] = False,
    json: Json = False,
) -> None:
    """What was trained here, and how runs compare.

    One folder: a line for each run in it. One run, or several: their curves too, and the settings in which they differ.
    Losses compare where the letters after them are equal; bits per byte compare for the same held-out text.
    """
    if delete:
        if png is not None or json:
            raise UsageError("--delete goes with the names of runs alone")
        return delete_runs(names)
    from foretell.runs.summary import differing_settings, warning_about
    from foretell.session.plots import MARKS, check_can_draw, write_png

    check_can_draw(png)
    folder, chosen = choose(names)
    summarized = readable(chosen) if folder else [(summary_of(run), run) for run in chosen]
    differences = {} if folder or len(summarized) < 2 else differing_settings([run for _, run in summarized])
    warning = warning_about([summary for summary, _ in summarized], differences) if differences else ""
    if png is not None:
        write_png(png, [(str(run.directory), run.metrics()) for _, run in summarized], warning)
        note(f"picture     {png}")
    if json:
        print_json({"runs": [summary.to_json() for summary, _ in summarized], "differences": differences})
    else:
        labels = [summary.name for summary, _ in summarized] if folder else list(names)
        show_list([summary for summary, _ in summarized], labels, "" if folder else MARKS)
        if not folder:
            show_comparison([run.metrics() for _, run in summarized], labels, differences, warning)
    return None


def delete_runs(names: tuple[str, ...]) -> None:
    """Delete runs, each after a yes to a question on stderr; a run that is training is refused."""
    from foretell.files import format_bytes
    from foretell.runs.lock import held
    from foretell.runs.run import Run, find_run

    if not names:
        raise UsageError("--delete needs the names of the runs to delete")
    for run in [find_run(name) for name in names]:
        with held(run.directory):
            if run.directory.is_symlink():
                raise UsageError(f"{run.directory} is a link; delete the run that it leads to")
            size = format_bytes(sum(path.stat().st_size for path in run.directory.rglob("*") if path.is_file()))
            if not confirmed(f"delete {run.directory} with all its checkpoints and metrics, {size}? [y/N] "):
                note(f"kept        {run.directory}")
                continue
            others = Run(run.directory.resolve()).remove()
        note(f"deleted     {run.directory}")
        for path in others:
            note(f"kept        {path}, which no training writes")


def confirmed(question: str) -> bool:
    """The answer from standard input; the end of the input is a `DataError`."""
    messages().print(question, end="")
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer:
        messages().print("")
        raise DataError("no answer on standard input; nothing more is deleted")
    return answer.strip().lower() in ("y", "yes")


def choose(names: tuple[str, ...]) -> tuple[Path | None, list[Run]]:
    """The folder to list and the runs in it, or no folder and the named runs."""
    from foretell.runs.run import RUNS, find_run, find_runs, is_run
    from foretell.session.plots import MARKS

    folder = RUNS if not names else Path(names[0])
    if not names and not folder.exists():
        note("no runs here yet: foretell train DATA makes one in ./runs")
        return folder, []
    if not names or (len(names) == 1 and folder.is_dir() and not is_run(folder) and not is_run(RUNS / folder)):
        in_folder = find_runs(folder)
        if not in_folder:
            note(f"no runs in {folder}")
        return folder, in_folder
    if len(names) > len(MARKS):
        raise UsageError(f"{len(names)} runs do not fit one plot; name at most {len(MARKS)}")
    return None, [find_run(name) for name in names]


def readable(chosen: list[Run]) -> list[tuple[Summary, Run]]:
    """The runs that can be read, with their summaries; damaged ones are named and left out."""
    summarized = []
    for run in chosen:
        try:
            summarized.append((summary_of(run), run))
        except ForetellError as error:
            note(f"left out: {error}")
    return summarized


def summary_of(run: Run) -> Summary:
    """A run in numbers."""
    from foretell.runs.summary import summarize

    return summarize(run)


# --- the table and the curves ----------------------------------------------------------------------------------------


def show_list(summaries: Sequence[Summary], labels: Sequence[str], marks: str) -> None:
    """A line for each run, with its mark if curves follow: the best validation loss, and bits per byte.

    If not all losses compare, comparable ones have the same letter.
    """
    console = results()
    if not summaries:
        return
    console.print(f"{'run':<{NAME}}" + columns(HEADER), style="dim")
    letters = letters_of(summaries)
    for index, (summary, label) in enumerate(zip(summaries, labels, strict=True)):
        name = Text(f"{marks[index]} ", style=COLOURS[index]) if marks else Text()
        name.append(fitted(label, NAME - 1 - name.cell_len), style="not dim")
        name.append(" " * (NAME - name.cell_len) + columns(cells(summary, letters[index])), style="default")
        console.print(name)
    if any(letters):
        console.print("losses with different letters do not compare: other tasks or held-out data", style="dim")


def letters_of(summaries: Sequence[Summary]) -> list[str]:
    """A letter for each run, the same for runs with the same held-out data; empty where all losses compare."""
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
    from foretell.runs.summary import DONE

    steps = f"{summary.steps}" if summary.state == DONE else f"{summary.step}/{summary.steps}"
    loss = "-" if summary.best_validation_loss is None else f"{summary.best_validation_loss:.3f}{letter}"
    bits = "-" if summary.bits_per_byte is None else f"{summary.bits_per_byte:.3f}"
    state = {"stopped early": "early stop"}.get(summary.state, summary.state)
    return (
        fitted(summary.size, WIDTHS[0]),
        "-" if summary.parameters is None else short_number(summary.parameters),
        steps,
        "-" if summary.tokens is None else short_number(summary.tokens),
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


def show_comparison(
    runs: Sequence[Metrics], labels: Sequence[str], differences: dict[str, list[Any]], warning: str
) -> None:
    """The curves in one plot, and below it the settings that differ."""
    from foretell.session.plots import MARKS, METRICS, plot, points_of, shared_axis, shared_metric

    console = results()
    key, axis = shared_metric(runs), shared_axis(runs)
    drawn = plot([points_of(metrics, key, axis) for metrics in runs], axis, results().width)
    console.print()
    console.print(f"{METRICS[key]}, in nats per token" if drawn else "nothing was measured yet")
    for line in drawn.splitlines():
        console.print(coloured(line, MARKS))
    if warning:
        console.print(warning, style="yellow")
    if len(runs) > 1:
        console.print()
        console.print("what differs" if differences else "all settings are the same")
    for name, values in differences.items():
        show_difference(console, name, values, MARKS)


def coloured(line: str, marks: str) -> Text:
    """A line with each mark in its run's colour."""
    text = Text(line)
    for mark, colour in zip(marks, COLOURS, strict=True):
        text.highlight_regex(mark, colour)
    return text


def show_difference(console: Console, name: str, values: Sequence[Any], marks: str) -> None:
    """A setting's values on one line, or one per line if that is too long."""
    parts = [f"{mark} {format_setting(value)}" for mark, value in zip(marks, values, strict=False)]
    line = f"{name:<{SETTING}}" + "  ".join(f"{part:<10}" for part in parts).rstrip()
    for shown in [line] if len(line) <= WIDTH else [name, *(f"  {part}" for part in parts)]:
        console.print(coloured(shown, marks))


def format_setting(value: Any) -> str:
    """A value of a setting for people."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None or value == {} else str(value)

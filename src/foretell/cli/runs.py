"""`foretell runs`: list the runs of a folder, compare runs, or delete them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from foretell.cli import arguments
from foretell.cli.terminal import messages, note, print_json, results, write
from foretell.errors import DataError, ForetellError, UsageError, as_path

if TYPE_CHECKING:
    from foretell.runs.run import Run
    from foretell.runs.summary import Summary

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")


def runs(
    *names: Annotated[str, Parameter(help="Runs, or one folder of them (none: ./runs).")],
    png: Annotated[arguments.Output, Parameter(help="Draw the loss curves of these runs into a file.")] = None,
    overwrite: arguments.Overwrite = False,
    delete: Annotated[bool, Parameter(help="Delete these runs, after a question.")] = False,
    json: arguments.Json = False,
) -> None:
    """List the runs in a folder, and compare runs.

    One folder: a line for each run in it. One run, or several: their curves too, and the settings in which they differ.
    Losses with equal letters can be compared; bits per byte can be compared for the same held-out text.
    """
    if delete:
        if png is not None or json:
            raise UsageError("--delete goes with the names of runs alone; leave out --png and --json")
        return delete_runs(names)
    from foretell.runs.summary import RunTable, differing_settings, letters_of, summarize, warning_about
    from foretell.session.plots import MARKS, check_can_draw, losses_of, write_png
    from foretell.storage.files import check_target

    check_can_draw(png)
    target = None if png is None else check_target(png, overwrite=overwrite)
    folder, chosen = choose(names)
    summarized = readable(chosen) if folder else [(summarize(run), run) for run in chosen]
    differences = {} if folder or len(summarized) < 2 else differing_settings([run for _, run in summarized])
    warning = warning_about([summary for summary, _ in summarized], differences) if differences else ""
    if target is not None:
        drawn = sorted(summarized, key=lambda pair: -pair[0].changed)[: len(MARKS)] if folder else summarized
        named = [(str(run.directory), run.metrics.records()) for _, run in drawn]
        write_png(target, named, warning, losses_of([run for _, run in drawn]))
        several = f": the {len(drawn)} of {len(summarized)} runs that changed last; name others"
        note(f"picture     {png}{several if len(drawn) < len(summarized) else ''}")
    labels = [summary.name for summary, _ in summarized] if folder else list(names)
    table = RunTable([summary for summary, _ in summarized], labels, "" if folder else MARKS, differences, warning)
    if json:
        print_json(table.to_json())
    elif folder is None:
        letters = letters_of(table.summaries)
        plots = [
            draw([run for _, run in summarized], [letter == group for letter in letters])
            for group in dict.fromkeys(letters)
        ]
        results().print(coloured("\n\n".join([str(table), *plots])))
    elif summarized:
        write(str(table))
    return None


def delete_runs(names: tuple[str, ...]) -> None:
    """Delete runs, each after a confirmation on stderr; refuses a run that is training."""
    from foretell.runs.lock import held
    from foretell.runs.run import Run, find_run
    from foretell.typesetting.numbers import format_bytes

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
            whole = Run(run.directory.resolve())
            others = whole.remove()
        note(f"deleted     {run.directory}")
        for path in others:
            note(f"kept        {run.directory / path.relative_to(whole.directory)}, which no training writes")


def confirmed(question: str) -> bool:
    """The answer from standard input; the end of the input is a `DataError`."""
    messages().print(question, end="")
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer:
        messages().print("")
        raise DataError("no answer on standard input; nothing more is deleted")
    return answer.strip().lower() in ("y", "yes")


def choose(names: tuple[str, ...]) -> tuple[Path | None, list[Run]]:
    """(folder, its runs) to list a folder, or (None, the named runs)."""
    from foretell.runs.run import RUNS, find_run, find_runs, is_run
    from foretell.session.plots import MARKS

    folder = RUNS if not names else as_path("a folder", names[0])
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
    """The readable runs with their summaries; damaged ones are noted and left out."""
    from foretell.runs.summary import summarize

    summarized = []
    for run in chosen:
        try:
            summarized.append((summarize(run), run))
        except ForetellError as error:
            note(f"left out: {error.for_command_line()}")
    return summarized


def coloured(text: str) -> Text:
    """Lines with each mark in its run's colour."""
    from foretell.session.plots import MARKS

    shown = Text(text)
    for mark, colour in zip(MARKS, COLOURS, strict=True):
        shown.highlight_regex(mark, colour)
    return shown


def draw(runs: Sequence[Run], shown: Sequence[bool]) -> str:
    """The curves of the shown runs in one plot; marks do not depend on which runs are shown."""
    from foretell.session.plots import METRICS, losses_of, plot, points_of, shared_axis, shared_metric

    curves = [run.metrics.records() * is_shown for run, is_shown in zip(runs, shown, strict=True)]
    key, axis, losses = shared_metric(curves), shared_axis(curves), losses_of(list(compress(runs, shown)))
    drawn = plot([points_of(metrics, key, axis) for metrics in curves], axis, results().width)
    return f"{METRICS[key]}{losses}\n{drawn}" if drawn else "nothing was measured yet"

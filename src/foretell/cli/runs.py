"""`foretell runs`: what was trained here, and how runs compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import Json
from foretell.cli.terminal import note, print_json

if TYPE_CHECKING:
    from foretell.runs.run import Run
    from foretell.runs.summary import Summary


def runs(
    *names: Annotated[str, Parameter(help="Runs, or one folder of them (none: ./runs).")],
    png: Annotated[Path | None, Parameter(help="Draw the loss curves of these runs into a file.")] = None,
    json: Json = False,
) -> None:
    """What was trained here, and how runs compare.

    One folder: a line for each run in it. One run, or several: their curves too, and the settings in which they differ.
    """
    from foretell.pretraining.comparison import check_can_draw, write_comparison
    from foretell.runs.differences import differing_settings

    check_can_draw(png)
    folder, chosen = choose(names)
    found = readable(chosen) if folder else [(summary_of(run), run) for run in chosen]
    differences = {} if folder or len(found) < 2 else differing_settings([run for _, run in found])
    if png is not None:
        write_comparison(png, [(str(run.directory), run.metrics()) for _, run in found])
        note(f"picture     {png}")
    if json:
        print_json({"runs": [summary.to_json() for summary, _ in found], "differences": differences})
    else:
        from foretell.cli.runs_display import show_comparison, show_list

        labels = [summary.name for summary, _ in found] if folder else list(names)
        show_list([summary for summary, _ in found], labels, marked=not folder)
        if not folder:
            show_comparison([run.metrics() for _, run in found], labels, differences)


def choose(names: tuple[str, ...]) -> tuple[Path | None, list[Run]]:
    """The folder that is meant and the runs in it, or no folder and the runs that are named."""
    from foretell.errors import UsageError
    from foretell.loading import RUNS, find_run
    from foretell.pretraining.comparison import MARKS
    from foretell.runs.run import is_run
    from foretell.runs.summary import find_runs

    folder = RUNS if not names else Path(names[0])
    if not names and not folder.exists():
        note("no runs here yet: foretell train DATA makes one in ./runs")
        return folder, []
    if not names or (len(names) == 1 and folder.is_dir() and not is_run(folder) and not is_run(RUNS / folder)):
        found = find_runs(folder)
        if not found:
            note(f"no runs in {folder}")
        return folder, found
    if len(names) > len(MARKS):
        raise UsageError(f"{len(names)} runs are more than one picture can show; name at most {len(MARKS)}")
    return None, [find_run(name) for name in names]


def readable(chosen: list[Run]) -> list[tuple[Summary, Run]]:
    """The runs that can be read; each damaged one is named, and does not hide the others."""
    from foretell.errors import ForetellError

    found = []
    for run in chosen:
        try:
            found.append((summary_of(run), run))
        except ForetellError as error:
            note(f"left out: {error}")
    return found


def summary_of(run: Run) -> Summary:
    """A run in numbers."""
    from foretell.runs.summary import summarize

    return summarize(run)

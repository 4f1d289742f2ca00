"""`foretell runs`: list the runs of a folder, or compare runs."""

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
    from foretell.runs.summary import differing_settings, warning_about
    from foretell.session.plots import check_can_draw, write_png

    check_can_draw(png)
    folder, chosen = choose(names)
    summarized = readable(chosen) if folder else [(summary_of(run), run) for run in chosen]
    differences = {} if folder or len(summarized) < 2 else differing_settings([run for _, run in summarized])
    if png is not None:
        write_png(png, [(str(run.directory), run.metrics()) for _, run in summarized], warning_about(differences))
        note(f"picture     {png}")
    if json:
        print_json({"runs": [summary.to_json() for summary, _ in summarized], "differences": differences})
    else:
        from foretell.cli.runs_display import show_comparison, show_list

        labels = [summary.name for summary, _ in summarized] if folder else list(names)
        show_list([summary for summary, _ in summarized], labels, marked=not folder)
        if not folder:
            show_comparison([run.metrics() for _, run in summarized], labels, differences)


def choose(names: tuple[str, ...]) -> tuple[Path | None, list[Run]]:
    """The folder to list and the runs in it, or no folder and the named runs."""
    from foretell.errors import UsageError
    from foretell.loading import RUNS, find_run
    from foretell.runs.run import is_run
    from foretell.runs.summary import find_runs
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
    """The runs that can be read, with their summaries; each damaged one is named and left out."""
    from foretell.errors import ForetellError

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

"""Find runs by path or by name, without torch."""

from __future__ import annotations

from pathlib import Path

from foretell.errors import CheckpointError, did_you_mean
from foretell.runs.run import Run, is_run

RUNS = Path("runs")


def find_run(argument: str) -> Run:
    """The run with this path, or with this name in ./runs."""
    for path in (Path(argument), RUNS / argument):
        if is_run(path):
            return Run(path)
    names = [run.name for run in find_runs(RUNS)] if RUNS.is_dir() else []
    near = did_you_mean(argument.removeprefix("runs/"), names)
    known = near or f"; there is {', '.join(names) or 'none in ./runs'}"
    raise CheckpointError(f"no run '{argument}': no such path, no run of that name{known}")


def find_runs(folder: Path) -> list[Run]:
    """The runs in a folder, by name."""
    try:
        return [Run(path) for path in sorted(folder.iterdir()) if is_run(path)]
    except OSError as error:
        raise CheckpointError(f"cannot list {folder}: {error.strerror}") from None

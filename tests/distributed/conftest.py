"""Scenarios on two and four gloo processes of this machine, each number of processes started once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import locked
from tests.warm import Original

HERE = Path(__file__).parent
SCENARIOS = "trainings,runs,looking_inside"
FAILURES = ["a_data_error", "a_killed_process", "a_stopped_process", "a_bad_option"]


@pytest.fixture(scope="session")
def folder(shared_folder: Path) -> Path:
    """The folder for the runs of the scenarios, whichever process of pytest-xdist starts them."""
    path = shared_folder / "distributed"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="session")
def results(folder: Path, original: Original):
    """Number of processes -> scenario -> its result. The scenarios run once for all processes of pytest-xdist."""

    @cache
    def results_of(size: int) -> dict[str, Any]:
        return run_once(original, folder, f"results-{size}", size, [SCENARIOS])

    return results_of


@pytest.fixture(scope="session")
def failures(folder: Path, original: Original) -> dict[str, int]:
    """The exit code of each scenario that fails on two processes; its messages are in the folder."""
    return run_once(original, folder, "failures", 2, FAILURES)


def run_once(original: Original, folder: Path, name: str, size: int, groups: list[str]) -> dict[str, Any]:
    """What `program.py` writes, whichever process of pytest-xdist runs it."""
    path = folder / f"{name}.json"
    with locked(folder / f"{name}.lock"):
        if not path.exists():
            arguments = [str(size), str(folder / f"{name}.new"), *groups]
            environment = {"FORETELL_TEST_FOLDER": str(folder)}
            done = original.run(arguments, environment=environment, program=HERE / "program.py")
            assert done.returncode == 0, done.stderr
            (folder / f"{name}.new").replace(path)
    return json.loads(path.read_text())

"""Scenarios on two and four gloo processes of this machine, each number of processes started once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import locked

HERE = Path(__file__).parent
SCENARIOS = "trainings,runs,looking_inside"
FAILURES = ["a_data_error", "a_killed_process", "a_stopped_process", "a_bad_option"]
SECONDS = 1200  # an upper bound on a loaded machine; torch's own limit would be 30 minutes


@pytest.fixture(scope="session")
def folder(shared_folder: Path) -> Path:
    """The folder for the runs of the scenarios, whichever process of pytest-xdist starts them."""
    path = shared_folder / "distributed"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="session")
def results(folder: Path):
    """Number of processes -> scenario -> its result. The scenarios run once for all processes of pytest-xdist."""

    @cache
    def results_of(size: int) -> dict[str, Any]:
        return run_once(folder, f"results-{size}", size, [SCENARIOS])

    return results_of


@pytest.fixture(scope="session")
def failures(folder: Path) -> dict[str, int]:
    """The exit code of each scenario that fails on two processes; its messages are in the folder."""
    return run_once(folder, "failures", 2, FAILURES)


def run_once(folder: Path, name: str, size: int, groups: list[str]) -> dict[str, Any]:
    """What `program.py` writes, whichever process of pytest-xdist runs it."""
    path = folder / f"{name}.json"
    with locked(folder / f"{name}.lock"):
        if not path.exists():
            command = [sys.executable, str(HERE / "program.py"), str(size), str(folder / f"{name}.new"), *groups]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "FORETELL_TEST_FOLDER": str(folder)}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
            assert done.returncode == 0, done.stderr
            (folder / f"{name}.new").replace(path)
    return json.loads(path.read_text())

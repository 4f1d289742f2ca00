"""Scenarios on two and four gloo processes of this machine, each number of processes started once."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SCENARIOS = ["trainings", "runs", "looking_inside"]


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
        path = folder / f"results-{size}.json"
        with (folder / f"results-{size}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                run_scenarios(size, path)
        return json.loads(path.read_text())

    def run_scenarios(size: int, path: Path) -> None:
        command = [sys.executable, str(HERE / "program.py"), str(size), str(path), *SCENARIOS]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "FORETELL_TEST_FOLDER": str(folder)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stderr

    return results_of

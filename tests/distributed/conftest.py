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

HERE = Path(__file__).parent
SCENARIOS = ["trainings", "runs", "looking_inside"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the scenarios write their runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def results(folder: Path):
    """Number of processes -> scenario -> what it returned."""

    @cache
    def results_of(size: int) -> dict[str, Any]:
        path = folder / f"results-{size}.json"
        command = [sys.executable, str(HERE / "program.py"), str(size), str(path), *SCENARIOS]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "FORETELL_TEST_FOLDER": str(folder)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stderr
        return json.loads(path.read_text())

    return results_of

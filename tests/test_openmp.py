"""The library's threads wait as those of its command line do, and the user's environment stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from foretell.openmp import SETTINGS

# libgomp prints its settings when it is loaded
READ = "import os; assert 'OMP_WAIT_POLICY' not in os.environ or os.environ['OMP_WAIT_POLICY'] == 'active'"


def loaded_policy(code: str, **environment: str) -> tuple[str, str]:
    """The waiting policy that OpenMP read while the code ran, and what was logged."""
    variables = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    variables |= {"OMP_DISPLAY_ENV": "true", **environment}
    outcome = subprocess.run(
        [sys.executable, "-c", f"{code}\n{READ}"], env=variables, capture_output=True, text=True, check=True
    )
    lines = outcome.stderr.splitlines()
    return next(line.split("'")[1] for line in lines if "OMP_WAIT_POLICY" in line), outcome.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp")
@pytest.mark.parametrize(
    "code", ["import foretell, torch", "import foretell; foretell.load", "from foretell.loading import load"]
)
def test_threads_sleep_while_they_wait_and_the_environment_is_restored(code):
    policy, messages = loaded_policy(code)
    assert policy == "PASSIVE"
    assert "torch was imported before" not in messages


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp")
def test_a_policy_that_the_user_chose_is_kept():
    assert loaded_policy("import foretell; foretell.load", OMP_WAIT_POLICY="active")[0] == "ACTIVE"


def test_one_line_tells_that_torch_was_imported_too_early():
    code = "import torch, foretell; foretell.load; foretell.load; foretell.train"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stderr.count("torch was imported before foretell") == 1
    chosen = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    outcome = subprocess.run([sys.executable, "-c", code], env=chosen, capture_output=True, text=True, check=True)
    assert outcome.stderr == ""

"""OpenMP's threads spin for a short time in the library and its command line; a choice of the user is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import foretell

SETTINGS = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"}  # each sets how threads wait
ROUNDS = 2000  # as docs/performance.md says
# Stands for torch, whose import takes seconds: it loads the library that torch loads
LIBRARY_ALONE = "import ctypes, pathlib\nctypes.CDLL(next(pathlib.Path({libraries!r}).glob('libgomp*')))\n"
# The modules of these names are empty
NAMES_ALONE = """
import sys, types
sys.modules["torch"] = types.ModuleType("torch")
import foretell
for name in ("load", "train"):
    module, name_there = foretell.homes()[name]
    sys.modules[module] = types.SimpleNamespace(**{name_there: None})
foretell.load; foretell.load; foretell.train
"""


def run_code(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process whose environment has only these settings."""
    variables = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=variables | environment, capture_output=True, text=True, check=True)


def spins(code: str, **environment: str) -> int:
    """The rounds that OpenMP's threads spin while they wait, which libgomp prints when the code loads it."""
    messages = run_code(code, OMP_DISPLAY_ENV="verbose", **environment).stderr
    assert "torch was imported before" not in messages
    return int(next(line.split("'")[1] for line in messages.splitlines() if "GOMP_SPINCOUNT" in line))


@pytest.fixture
def path_of_library(tmp_path: Path) -> str:
    """A PYTHONPATH with a module `torch` that only loads OpenMP."""
    libraries = Path(torch.__file__).parent / "lib"
    if not list(libraries.glob("libgomp*")):
        pytest.skip("torch has no libgomp")
    (tmp_path / "torch.py").write_text(LIBRARY_ALONE.format(libraries=str(libraries)), encoding="utf-8")
    return os.pathsep.join([str(tmp_path), str(Path(foretell.__file__).parents[1])])


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp")
@pytest.mark.parametrize("code", ["from foretell.loading import load", "import foretell; foretell.load"])
def test_threads_spin_shortly_while_they_wait(code):
    assert spins(code) == ROUNDS


def test_it_is_so_for_torch_that_is_imported_after_the_package(path_of_library):
    assert spins("import foretell, torch", PYTHONPATH=path_of_library) == ROUNDS


def test_without_the_package_threads_spin_long(path_of_library):
    assert spins("import torch", PYTHONPATH=path_of_library) > 10 * ROUNDS


def test_a_choice_of_the_user_is_kept(path_of_library):
    assert spins("import foretell, torch", PYTHONPATH=path_of_library, OMP_WAIT_POLICY="active") > 10 * ROUNDS
    assert spins("import foretell, torch", PYTHONPATH=path_of_library, OMP_WAIT_POLICY="passive") == 0
    assert spins("import foretell, torch", PYTHONPATH=path_of_library, GOMP_SPINCOUNT="7") == 7


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_with_a_choice_of_the_user_the_environment_is_unchanged(setting):
    print_settings = f"import foretell, os; print([name for name in {sorted(SETTINGS)} if name in os.environ])"
    assert run_code(print_settings, **{setting: "1"}).stdout == f"{[setting]}\n"


def test_one_line_tells_that_torch_was_imported_too_early():
    assert run_code(NAMES_ALONE).stderr.count("torch was imported before foretell") == 1
    assert run_code(NAMES_ALONE, OMP_WAIT_POLICY="passive").stderr == ""

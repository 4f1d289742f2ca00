"""The commands that are printed work where they are printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foretell.errors import shell_words
from foretell.session.failures import command_name


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program in an environment that is not active, run from the folder above it."""
    path = tmp_path / "my project" / ".venv" / "bin" / "foretell"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\necho it runs\n")
    path.chmod(0o755)
    monkeypatch.chdir(path.parents[2])
    monkeypatch.setattr(sys, "argv", [".venv/bin/foretell", "demo"])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return path


def test_a_program_that_is_not_on_the_path_is_named_by_its_path(program: Path) -> None:
    assert command_name() == ".venv/bin/foretell"


@pytest.mark.parametrize("here", ["/", "."])
def test_the_name_can_be_pasted_into_a_shell(program: Path, here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.chdir(here)
    assert subprocess.check_output(["sh", "-c", command_name()], text=True) == "it runs\n"


def test_in_an_active_environment_the_name_is_enough(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert command_name() == "foretell"


def test_another_program_of_that_name_on_the_path_is_not_meant(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "foretell"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_name() == ".venv/bin/foretell"


def test_without_the_program_the_module_is_run(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/lib/foretell/__main__.py"])
    assert command_name() == f"{sys.executable} -m foretell"


def test_words_with_line_feeds_are_one_line_that_bash_reads() -> None:
    words = ["two\nlines.txt", "it's\n", "two  spaces", "plain"]
    line = shell_words(*words)
    assert "\n" not in line
    assert subprocess.check_output(["bash", "-c", f"printf '%s|' {line}"], text=True).split("|")[:-1] == words

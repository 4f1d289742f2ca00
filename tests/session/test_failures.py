"""Ctrl-C, SIGTERM and SIGHUP: the first is recorded, the second stops at once; the commands that are printed work."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from foretell.errors import Interrupted, shell_words
from foretell.session.commands import command_name
from foretell.session.failures import StopSignal


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_is_recorded_and_the_second_stops_at_once(number: signal.Signals, exit_code: int) -> None:
    with StopSignal() as stop:
        assert stop.number is None
        signal.raise_signal(number)
        assert (stop.number, stop.exit_code) == (number, exit_code)
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Interrupted):
            signal.raise_signal(number)


def test_the_previous_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignal():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_hangup_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nohup starts a command."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.number is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_that_may_not_handle_signals_trains_without_them() -> None:
    seen: list[int | None] = []

    def train() -> None:
        with StopSignal() as stop:
            seen.append(stop.number)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen == [None]


@pytest.mark.parametrize("number", ["SIGINT", "SIGHUP"])
def test_programs_that_tests_start_do_not_inherit_ignored_signals(number: str) -> None:
    """Fails in `nohup make test &` without the handlers of tests/conftest.py."""
    code = f"import signal; assert signal.getsignal(signal.{number}) != signal.SIG_IGN"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the commands that are printed -----------------------------------------------------------------------------------


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

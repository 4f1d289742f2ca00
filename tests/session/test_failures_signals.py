"""Ctrl-C, SIGTERM and SIGHUP: the first is recorded, the second stops at once; handlers are restored."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from foretell.errors import Interrupted
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

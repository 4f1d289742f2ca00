"""Ctrl-C and SIGTERM: the first is noted, the second stops at once, and afterwards all is as before."""

from __future__ import annotations

import signal
import threading

import pytest

from foretell.errors import Interrupted
from foretell.training.signals import StopSignal


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_noted_and_the_second_stops_at_once(number: signal.Signals, exit_code: int) -> None:
    with StopSignal() as stop:
        assert stop.number is None
        signal.raise_signal(number)
        assert (stop.number, stop.exit_code) == (number, exit_code)
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Interrupted):
            signal.raise_signal(number)


def test_the_handlers_from_before_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignal():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_thread_which_may_not_handle_signals_trains_without() -> None:
    noted: list[int | None] = []

    def train() -> None:
        with StopSignal() as stop:
            noted.append(stop.number)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert noted == [None]

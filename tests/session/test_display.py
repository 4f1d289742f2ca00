"""The displays of a training: which one a program has, the lines of a terminal, the output of a notebook."""

from __future__ import annotations

import io
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from foretell.session.display import (
    LiveReporter,
    NotebookReporter,
    PlainReporter,
    choose_display,
    describe,
    describe_gauges,
    notes_of_the_log,
)
from foretell.session.reporter import Reporters

METRICS = {
    "step": 123_456,
    "loss": 12.345,
    "validation_loss": 12.345,
    "learning_rate": 1.2345e-5,
    "gradient_norm": 1234.5678,
    "tokens_per_second": 1_234_567.8,
    "mfu": 0.41,
    "peak_memory_bytes": 123 * 2**30,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def metrics(step: int, validation: float | None = None) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 4.0 / step,
        "validation_loss": validation,
        "learning_rate": 1e-3,
        "gradient_norm": 1.0,
        "tokens_per_second": 100.0,
        "mfu": None,
        "peak_memory_bytes": 2**20,
    }


def kinds(progress: bool | None) -> list[type]:
    return [type(display) for display in choose_display(progress)]


def test_a_terminal_has_a_live_display_unless_progress_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())  # not in a fixture: pytest replaces it before the test
    assert kinds(None) == kinds(True) == [LiveReporter]
    assert kinds(False) == []


def test_elsewhere_progress_is_shown_only_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert kinds(None) == kinds(False) == []
    assert kinds(True) == [PlainReporter]


def test_a_notebook_has_one_output_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[str] = []
    handle = SimpleNamespace(update=lambda content: outputs.append(content))

    def display(content: str, display_id: bool) -> Any:
        outputs.append(content)
        return handle

    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    monkeypatch.setattr("foretell.session.display.NOTEBOOK_SECONDS", 0.0)
    (reporter,) = choose_display(None)
    with Reporters([reporter]) as reporters:
        for step in range(1, 6):
            reporters.metrics(metrics(step, 3.0 / step if step > 3 else None), 5)
        reporters.sample(5, "The <b>", "cat & dog")
    assert len(outputs) == 6
    last = outputs[-1]
    assert 'value="5" max="5"' in last
    assert "The &lt;b&gt;</i>cat &amp; dog" in last
    assert "validation 0.600" in last


def test_notes_of_the_log_are_shown_with_a_text_display_and_not_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, stream = logging.getLogger("foretell"), io.StringIO()
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    reporter = PlainReporter(Console(file=stream))
    with notes_of_the_log([reporter]):
        logger.info("size        tiny, since the text is short")
    assert stream.getvalue().startswith("size        tiny")
    assert logger.handlers == []
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
    with notes_of_the_log([reporter]):
        logger.info("again")
    assert "again" not in stream.getvalue()


def test_without_a_notebook_its_display_needs_an_output() -> None:
    shown: list[str] = []
    NotebookReporter(shown.append).metrics(metrics(1), 2)
    assert "step 1/2" in shown[0]


def test_both_lines_fit_eighty_columns():
    usual = METRICS | {"step": 12_345, "loss": 2.345, "validation_loss": 2.345, "tokens_per_second": 123_456.7}
    assert len(describe(usual, 20_000, "1:23:45 left").plain) <= 80
    assert len(describe_gauges(METRICS).plain) <= 80


def test_the_gauges_show_only_what_was_measured():
    assert describe_gauges(METRICS).plain == ("learning rate 1.2e-05  gradient 1234.57  41% MFU  125,952 MiB")
    assert "MFU" not in describe_gauges(METRICS | {"mfu": None}).plain


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_sample_wraps_at_words_on_a_terminal_and_is_one_line_in_a_log(is_terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=80, soft_wrap=True, color_system=None)
    PlainReporter(console).sample(20, "The quick brown fox", " jumps over the lazy dog" * 6)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert lines[0].startswith("  step 20:  The quick brown fox jumps over")
    assert len(lines) == (3 if is_terminal else 1)
    if is_terminal:
        assert max(map(len, lines)) <= 80 and lines[1].startswith(" " * 12 + "jumps over")

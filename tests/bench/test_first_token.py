"""bench/first_token.py: what it waits for, on programs that take no time."""

from __future__ import annotations

import os
import sys

import pytest
from first_token import Program, read_past


@pytest.mark.parametrize(
    ("written", "shown", "is_shown"),
    [
        (b"The cat sat", "The cat", True),
        (b"\n\nThe cat", "The cat", False),  # blank lines before the prompt are not its continuation
        (b"The cat", "The cat", False),
        (b"x", "", True),
        (b"", "", False),
        (b"anything", None, True),
    ],
)
def test_a_new_token_is_what_comes_after_the_prompt(written, shown, is_shown):
    reader, writer = os.pipe()
    os.write(writer, written)
    os.close(writer)
    assert read_past(reader, shown) is is_shown
    os.close(reader)


def test_a_program_is_stopped_at_its_first_token():
    endless = "import time; print('The cat', end='', flush=True); print(' sat', flush=True); time.sleep(600)"
    seconds, cpu_seconds = Program([sys.executable, "-c", endless], "The cat").measure()
    assert cpu_seconds >= 0
    assert 0 < seconds < 600


def test_a_program_that_ends_before_its_first_token_is_an_error():
    with pytest.raises(SystemExit, match="ended before its first token"):
        Program([sys.executable, "-c", "print('The cat')"], "The cat and the dog").measure()

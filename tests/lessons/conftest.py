"""Every lesson, made once."""

from __future__ import annotations

import pytest

from foretell.lessons.catalog import ENTRIES
from foretell.lessons.check import Check
from foretell.lessons.classes import make_lesson
from foretell.lessons.lesson import Lesson

NAMES = [entry.name for entry in ENTRIES]


@pytest.fixture(scope="session")
def lessons() -> dict[str, Lesson]:
    return {name: make_lesson(name) for name in NAMES}


@pytest.fixture
def failures():
    """The names of a lesson's checks that fail."""

    def of(checks: list[Check]) -> list[str]:
        return [check.what for check in checks if not check.passed]

    return of

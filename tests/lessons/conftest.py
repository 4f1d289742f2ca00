"""All lessons, made once per test run."""

from __future__ import annotations

import copy

import pytest

from foretell.lessons.catalog import ENTRIES
from foretell.lessons.lesson import FigureCheck, Lesson
from foretell.lessons.registry import make_lesson

NAMES = [entry.name for entry in ENTRIES]


@pytest.fixture(scope="session")
def lessons() -> dict[str, Lesson]:
    return {name: make_lesson(name) for name in NAMES}


@pytest.fixture
def altered():
    """A function that copies a lesson, with other values."""

    def of(lesson: Lesson, **values: object) -> Lesson:
        other = copy.copy(lesson)
        assert vars(other).keys() >= values.keys()
        vars(other).update(values)
        return other

    return of


@pytest.fixture
def failures():
    """A function that returns the names of the failed checks."""

    def of(checks: list[FigureCheck]) -> list[str]:
        return [check.what for check in checks if not check.passed]

    return of

"""Lessons, each made once per test process, when a test first asks for it: some train a model."""

from __future__ import annotations

import copy

import pytest

from foretell.lessons.lesson import FigureCheck, Lesson
from foretell.lessons.registry import make_lesson


class LessonsOnDemand(dict[str, Lesson]):
    def __missing__(self, name: str) -> Lesson:
        self[name] = make_lesson(name)
        return self[name]


@pytest.fixture(scope="session")
def lessons() -> LessonsOnDemand:
    return LessonsOnDemand()


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

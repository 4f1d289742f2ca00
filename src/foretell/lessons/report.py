"""The checks of a lesson, and what they amount to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from foretell.lessons.check import Check
from foretell.lessons.lesson import Lesson

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Report:
    """What came of a lesson's checks. skipped: why some could not be made; the others were made all the same."""

    name: str
    checks: list[Check]
    skipped: str

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]

    @property
    def status(self) -> Status:
        """One that fails outweighs those that could not be made."""
        if self.failures:
            return "failed"
        return "skipped" if self.skipped else "passed"

    def to_json(self) -> dict[str, Any]:
        """The lesson as it stands in `foretell lesson --check --json`."""
        checks = [check.to_json() for check in self.checks]
        return {"name": self.name, "status": self.status, "reason": self.skipped, "checks": checks}


def check_lesson(name: str, lesson: Lesson) -> Report:
    """Make all checks of a lesson."""
    return Report(name, lesson.checks(), lesson.skipped)

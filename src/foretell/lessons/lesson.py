"""A lesson: a document to read, checks of its figures, and the report of those checks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from foretell.lessons.catalog import find_lesson
from foretell.lessons.document import read_document
from foretell.typesetting.document import DocumentSection
from foretell.typesetting.notebook import Shown

# The sources computed in float32 before they rounded. A value this close to the midpoint between two printed figures
# can round the other way in float64; 1e-7 is one unit in float32's last place for numbers of size 1
FLOAT32_UNIT = 1e-7


@dataclass(frozen=True)
class FigureCheck:
    """One comparison. `tolerance` is None where the two must be equal, or where `expected` is a limit."""

    what: str
    expected: Any
    got: Any
    tolerance: float | None
    passed: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values. Infinity and NaN become text, since JSON has neither."""
        return {name: plain(value) for name, value in asdict(self).items()}

    def difference(self) -> str:
        """Expected and computed value in one line; of arrays the entry with the largest difference."""
        expected, got = np.asarray(self.expected), np.asarray(self.got)
        if expected.ndim == 0 or expected.shape != got.shape:
            return f"{self.what}: expected {self.expected}, got {self.got}"
        errors = ~(expected == got) if self.tolerance is None else np.nan_to_num(distances(expected, got), nan=np.inf)
        index = np.unravel_index(int(np.argmax(errors)), expected.shape)
        position = ", ".join(map(str, index))
        return f"{self.what} [{position}]: expected {expected[index]}, got {got[index]}"


def printed(what: str, expected: ArrayLike, got: ArrayLike, digits: int = 4) -> FigureCheck:
    """`got` rounds to the printed figures, which have `digits` digits after the point."""
    return near(what, expected, got, 0.5 * 10.0**-digits + FLOAT32_UNIT)


def near(what: str, expected: ArrayLike, got: ArrayLike, tolerance: float) -> FigureCheck:
    """Shapes are equal, infinities are at the same indices, and all other numbers are within `tolerance`."""
    first, second = np.asarray(expected), np.asarray(got)
    passed = first.shape == second.shape and bool((distances(first, second) <= tolerance).all())
    return FigureCheck(what, expected, got, tolerance, passed)


def same(what: str, expected: Any, got: Any) -> FigureCheck:
    """The two are equal."""
    return FigureCheck(what, expected, got, None, bool(np.array_equal(np.asarray(expected), np.asarray(got))))


def below(what: str, limit: float, got: float) -> FigureCheck:
    """The number is below the limit."""
    return FigureCheck(what, f"below {limit}", got, None, got < limit)


def above(what: str, limit: float, got: float) -> FigureCheck:
    """The number is above the limit."""
    return FigureCheck(what, f"above {limit}", got, None, got > limit)


def distances(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Absolute differences of two arrays of one shape; equal infinities have difference 0."""
    with np.errstate(invalid="ignore"):
        return np.where(expected == got, 0.0, np.abs(expected.astype(float) - got.astype(float)))


def plain(value: Any) -> Any:
    """Numbers, text and lists of them, as JSON represents them."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


LessonStatus = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class LessonReport:
    """The checks of one lesson. `skipped` is the reason why some could not be made; the others were made."""

    name: str
    checks: list[FigureCheck]
    skipped: str

    @property
    def failures(self) -> list[FigureCheck]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    @property
    def status(self) -> LessonStatus:
        """failed if any check failed; otherwise skipped if some could not be made."""
        if self.failures:
            return "failed"
        return "skipped" if self.skipped else "passed"

    def to_json(self) -> dict[str, Any]:
        """One entry of `foretell lesson --check --json`."""
        checks = [check.to_json() for check in self.checks]
        return {"name": self.name, "status": self.status, "reason": self.skipped, "checks": checks}


class Lesson(Shown):
    """A document to read, and checks of its figures. Both use the same values, computed once when it is made.

    `name` is in the catalog; the document's text is in `NAME.md`.
    """

    name: ClassVar[str]

    @abstractmethod
    def shown(self) -> Mapping[str, Any]:
        """The values that the document names, ready to show."""

    @abstractmethod
    def checks(self) -> list[FigureCheck]:
        """Every figure of the source that can be computed, compared with the computed value."""

    @property
    def skipped(self) -> str:
        """Why some of the figures could not be checked; empty if all were."""
        return ""

    def document(self) -> DocumentSection:
        return read_document(find_lesson(self.name).text, self.shown())

    def report(self) -> LessonReport:
        """All checks, made now."""
        return LessonReport(self.name, self.checks(), self.skipped)

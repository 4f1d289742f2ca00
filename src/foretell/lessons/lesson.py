"""What a lesson is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from foretell.lessons.check import Check

if TYPE_CHECKING:
    from foretell.typesetting.document import Section


class Lesson(ABC):
    """A walk to read and figures to check. Both show the same numbers, computed once."""

    @abstractmethod
    def document(self) -> Section:
        """The walk: a few screens."""

    @abstractmethod
    def checks(self) -> list[Check]:
        """Every figure of the text that can be computed again, compared with what comes out."""

    @property
    def skipped(self) -> str:
        """Why some of the figures could not be checked here; empty where all were."""
        return ""

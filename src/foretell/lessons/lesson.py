"""What a lesson is."""

from __future__ import annotations

from abc import abstractmethod

from foretell.lessons.check import Check
from foretell.typesetting.notebook import Shown


class Lesson(Shown):
    """A walk to read (`document`) and figures to check. Both show the same numbers, computed once."""

    @abstractmethod
    def checks(self) -> list[Check]:
        """Every figure of the text that can be computed again, compared with what comes out."""

    @property
    def skipped(self) -> str:
        """Why some of the figures could not be checked here; empty where all were."""
        return ""

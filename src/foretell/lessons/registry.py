"""The lessons by name, with their titles and sources. A lesson's module, which needs torch, is imported when the
lesson is made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import Any

from foretell.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class LessonEntry:
    """A lesson's name and number, and the command-line options it takes."""

    name: str
    alias: str
    options: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The lesson's Markdown, with the names of its values."""
        return files("foretell.lessons").joinpath(f"{self.name}.md").read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0].removeprefix("# ")

    @property
    def source(self) -> str:
        """The text that the lesson follows, from the document's first paragraph."""
        paragraph = re.search(r"^Source: (.*?)\.\n\n", self.text, re.DOTALL | re.MULTILINE)
        assert paragraph, f"{self.name}.md names no source"
        return " ".join(paragraph[1].split())


ENTRIES = (
    LessonEntry("smallest", "E1", options=("text", "seed")),
    LessonEntry("gpt2", "E2", options=("weights", "at")),
    LessonEntry("algorithms", "E3"),
    LessonEntry("toy", "E4", options=("seed", "ask")),
    LessonEntry("aggregation", "E5"),
    LessonEntry("translation", "E6", options=("model", "ask")),
    LessonEntry("gradient", "E7"),
    LessonEntry("sort", "", options=("out", "open")),
    LessonEntry("induction", "", options=("out", "open")),
    LessonEntry("mask", "", options=("break",)),
)

EXERCISES = 3  # of each lesson


def find_lesson(name: str) -> LessonEntry:
    """The lesson with this name, or with this number in upper or lower case.

    Raises UsageError, which suggests the nearest name, if there is none.
    """
    for entry in ENTRIES:
        if name and name.lower() in (entry.name, entry.alias.lower()):
            return entry
    names = [entry.name for entry in ENTRIES]
    nearest = did_you_mean(name.lower(), names) or f"; the lessons are {', '.join(names)}"
    raise UsageError(f"no lesson '{name}'{nearest}")


def lesson_class(name: str) -> type[Any]:
    """`Gpt2Lesson` of gpt2.py."""
    return getattr(import_module(f"foretell.lessons.{name}"), f"{name.capitalize()}Lesson")


def make_lesson(name: str, **options: Any) -> Any:
    """Make a `Lesson`, which computes its values. options: the parameters of its class."""
    return lesson_class(find_lesson(name).name)(**options)

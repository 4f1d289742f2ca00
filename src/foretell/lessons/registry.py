"""Lessons from their names. Making a lesson computes its values."""

from __future__ import annotations

from typing import Any

from foretell.lessons.aggregation import AggregationLesson
from foretell.lessons.algorithms import AlgorithmsLesson
from foretell.lessons.gpt2 import Gpt2Lesson
from foretell.lessons.induction import InductionLesson
from foretell.lessons.lesson import Lesson
from foretell.lessons.mask import MaskLesson
from foretell.lessons.smallest import SmallestLesson
from foretell.lessons.sort import SortLesson
from foretell.lessons.toy import ToyLesson
from foretell.lessons.translation import TranslationLesson

LESSONS: dict[str, type[Lesson]] = {
    "smallest": SmallestLesson,
    "gpt2": Gpt2Lesson,
    "algorithms": AlgorithmsLesson,
    "toy": ToyLesson,
    "aggregation": AggregationLesson,
    "translation": TranslationLesson,
    "sort": SortLesson,
    "induction": InductionLesson,
    "mask": MaskLesson,
}


def make_lesson(name: str, **options: Any) -> Lesson:
    """options: the parameters of the lesson's class."""
    return LESSONS[name](**options)

"""Lessons from their names. Making a lesson computes its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foretell.lessons.aggregation import AggregationLesson
from foretell.lessons.algorithms import AlgorithmsLesson
from foretell.lessons.gpt2 import Gpt2Lesson
from foretell.lessons.induction import InductionLesson
from foretell.lessons.lesson import Lesson
from foretell.lessons.mask import MaskLesson
from foretell.lessons.smallest import SmallestLesson
from foretell.lessons.sort import SortLesson
from foretell.lessons.toy import ToyLesson
from foretell.lessons.translation import LiveTranslation, TranslationLesson


@dataclass(frozen=True)
class LessonOptions:
    """The options of all lessons; each lesson uses its own, see `catalog.LessonEntry.options`."""

    weights: str | None = None  # gpt2: a directory with GPT-2
    at: int | None = None  # gpt2: one more position whose distribution is shown
    seed: int | None = None  # toy: the seed of its weights
    question: str | None = None  # toy: a prompt for the trained model
    live: LiveTranslation | None = None  # translation: what a trained model made of a sentence
    broken: bool = False  # mask: show the model whose mask is missing


LESSONS: dict[str, Callable[[LessonOptions], Lesson]] = {
    "smallest": lambda options: SmallestLesson(),
    "gpt2": lambda options: Gpt2Lesson(options.weights, options.at),
    "algorithms": lambda options: AlgorithmsLesson(),
    "toy": lambda options: ToyLesson(options.seed, options.question),
    "aggregation": lambda options: AggregationLesson(),
    "translation": lambda options: TranslationLesson(options.live),
    "sort": lambda options: SortLesson(),
    "induction": lambda options: InductionLesson(),
    "mask": lambda options: MaskLesson(options.broken),
}


def make_lesson(name: str, options: LessonOptions | None = None) -> Lesson:
    return LESSONS[name](options or LessonOptions())

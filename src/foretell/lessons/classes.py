"""From a name to a lesson. A lesson computes when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foretell.lessons.aggregation.lesson import Aggregation
from foretell.lessons.encoder_decoder.lesson import EncoderDecoder
from foretell.lessons.formal_algorithms.lesson import FormalAlgorithms
from foretell.lessons.gpt2.lesson import Gpt2
from foretell.lessons.lesson import Lesson
from foretell.lessons.mask.lesson import MaskLesson
from foretell.lessons.smallest_decoder.lesson import SmallestDecoder
from foretell.lessons.toy.lesson import Toy


@dataclass(frozen=True)
class Choices:
    """What can be chosen about a lesson; each looks at what concerns it, see `catalog.Entry.options`."""

    weights: str | None = None  # a directory with GPT-2
    at: int | None = None  # one position more whose distribution is shown
    seed: int | None = None  # of the toy's weights
    broken: bool = False  # show the model that peeks


LESSONS: dict[str, Callable[[Choices], Lesson]] = {
    "smallest": lambda choices: SmallestDecoder(),
    "gpt2": lambda choices: Gpt2(choices.weights, choices.at),
    "algorithms": lambda choices: FormalAlgorithms(),
    "toy": lambda choices: Toy(choices.seed),
    "aggregation": lambda choices: Aggregation(),
    "translation": lambda choices: EncoderDecoder(),
    "mask": lambda choices: MaskLesson(choices.broken),
}


def make_lesson(name: str, choices: Choices | None = None) -> Lesson:
    """The lesson of a name in the catalog."""
    return LESSONS[name](choices or Choices())

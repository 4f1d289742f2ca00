"""The lessons by name, with their titles and sources. Imports no torch, so listing them is fast."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class LessonEntry:
    """A lesson's name, number, title and source, and the command-line options it takes."""

    name: str
    alias: str
    title: str
    source: str
    options: tuple[str, ...] = ()


ENTRIES = (
    LessonEntry(
        "smallest",
        "E1",
        "The smallest decoder, every number shown",
        '"Decoder models - GPT", a course chapter',
    ),
    LessonEntry(
        "gpt2",
        "E2",
        "GPT-2 reads the news: tokens, and what comes next",
        '"Decoder models - GPT", a course chapter: the example with GPT-2',
        options=("weights", "at"),
    ),
    LessonEntry(
        "algorithms",
        "E3",
        "The formal algorithms: attention, decoder, training, inference",
        'Ivan Habernal, "Text generation 4: Decoder-only models and GPT", lecture 11 of '
        '"Natural Language Processing with Deep Learning", 2023',
    ),
    LessonEntry(
        "toy",
        "E4",
        "A toy that learns to answer, one step of Adam at a time",
        'seyong2, "Building a Decoder-Only Transformer Model", after Josh Starmer\'s video '
        '"Coding a ChatGPT Like Transformer From Scratch in PyTorch"',
        options=("seed", "ask"),
    ),
    LessonEntry(
        "aggregation",
        "E5",
        "Attention as a weighted sum, and forecasting any sequence",
        '"Generative Pre-trained Transformer (GPT) networks", a notebook',
    ),
    LessonEntry(
        "translation",
        "E6",
        "The decoder of an encoder-decoder, translating",
        '"Decoder-based models", notes with figures 1.42 to 1.54',
        options=("model", "ask"),
    ),
    LessonEntry(
        "mask",
        "",
        "The mask: which tokens see which, and a model that peeks",
        "foretell's own check of the mask before training",
        options=("break",),
    ),
)


def find_lesson(name: str) -> LessonEntry:
    """The lesson with this name, or with this number in upper or lower case.

    Raises:
        UsageError: there is no such lesson; the message names the nearest.
    """
    for entry in ENTRIES:
        if name.lower() in (entry.name, entry.alias.lower()):
            return entry
    names = [entry.name for entry in ENTRIES]
    nearest = did_you_mean(name.lower(), names) or f"; the lessons are {', '.join(names)}"
    raise UsageError(f"no lesson '{name}'{nearest}")

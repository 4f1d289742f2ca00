"""The lessons by name. Nothing heavy is imported here, so that they can be listed at once."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Entry:
    """A lesson's name, what it is about, the text it follows, and which options of the command line it has."""

    name: str
    alias: str
    title: str
    source: str
    options: tuple[str, ...] = ()


ENTRIES = (
    Entry(
        "smallest",
        "E1",
        "The smallest decoder, every number shown",
        "a chapter of a course on text in finance, on decoder models",
    ),
    Entry(
        "gpt2",
        "E2",
        "GPT-2 reads the news: tokens, and what comes next",
        "the same chapter, on a model of real size",
        options=("weights", "at"),
    ),
    Entry(
        "algorithms",
        "E3",
        "The formal algorithms: attention, decoder, training, use",
        "a lecture's slides on decoder-only models and GPT",
    ),
    Entry(
        "toy",
        "E4",
        "A toy that learns to answer, one step of Adam at a time",
        "a post that builds a decoder-only transformer in PyTorch",
        options=("seed",),
    ),
    Entry(
        "aggregation",
        "E5",
        "Attention as a weighted sum, and forecasting any sequence",
        "a notebook on how generative pre-trained transformers aggregate",
    ),
    Entry(
        "translation",
        "E6",
        "The decoder of an encoder-decoder, translating",
        "notes on the decoder block of the transformer",
    ),
    Entry(
        "mask",
        "",
        "The mask: who may see whom, and a model that peeks",
        "foretell's own promise that no model trains while it sees the future",
        options=("break",),
    ),
)


def find_lesson(name: str) -> Entry:
    """The lesson of a name, or of its number in any case; a `UsageError` names the nearest for another."""
    for entry in ENTRIES:
        if name.lower() in (entry.name, entry.alias.lower()):
            return entry
    names = [entry.name for entry in ENTRIES]
    near = did_you_mean(name.lower(), names) or f"; there is {', '.join(names)}"
    raise UsageError(f"no lesson '{name}'{near}")

"""The lesson on GPT-2: its tokens, and what it expects."""

from __future__ import annotations

from foretell.inference.query import NextTokens
from foretell.lessons.check import Check, above, below, printed, same
from foretell.lessons.gpt2 import printed as figures
from foretell.lessons.gpt2.page import make_page
from foretell.lessons.gpt2.values import Reading, read
from foretell.lessons.lesson import Lesson
from foretell.text.byte_level import piece_bytes
from foretell.typesetting.document import Section

# Rows of another length are added up in another order, in float32
SAME_CONTEXT, OTHER_CONTEXT = 1e-4, 5e-2


class Gpt2(Lesson):
    """46 tokens and two distributions. `weights` is a directory with GPT-2; without it the model inside reads."""

    def __init__(self, weights: str | None = None, at: int | None = None):
        self.reading = read(weights, at)

    @property
    def skipped(self) -> str:
        if self.reading.is_gpt2:
            return ""
        return "GPT-2's weights are not here; --weights DIR names a folder with them"

    def document(self) -> Section:
        return make_page(self.reading)

    def checks(self) -> list[Check]:
        return [
            *check_pieces(),
            *check_context(self.reading),
            *(check_gpt2(self.reading) if self.reading.is_gpt2 else []),
        ]


def check_pieces() -> list[Check]:
    """The printed pieces are the sentence, byte for byte."""
    return [
        same("tokens", 46, len(figures.IDS)),
        same("pieces", len(figures.IDS), len(figures.PIECES)),
        same(
            "the pieces' bytes are the sentence", figures.SENTENCE, b"".join(map(piece_bytes, figures.PIECES)).decode()
        ),
        same("the pieces of a curly quote", "“", b"".join(map(piece_bytes, figures.PIECES[34:36])).decode().strip()),
    ]


def check_context(reading: Reading) -> list[Check]:
    """The logits at a position follow the tokens up to it, itself included; not one token fewer."""
    return [
        below("difference from what follows the same tokens alone", SAME_CONTEXT, reading.apart),
        above("difference from what follows one token fewer", OTHER_CONTEXT, reading.apart_short),
    ]


def check_gpt2(reading: Reading) -> list[Check]:
    """What the chapter prints of the real model."""
    shown = dict(zip(reading.places, reading.following, strict=True))
    return [
        same("ids", figures.IDS, reading.ids),
        same("logits at a position", figures.VOCABULARY_SIZE, reading.model.decoder.config.vocab_size),
        *(check for place in figures.FOLLOWING for check in check_following(place, shown.get(place))),
    ]


def check_following(place: int, found: NextTokens | None) -> list[Check]:
    """The context and the five likeliest tokens after one position."""
    context, expected = figures.FOLLOWING[place]
    tokens = found.tokens if found is not None else []
    return [
        same(f"context of position {place}", context, found.context if found is not None else None),
        same(f"likeliest after position {place}", list(expected), [token.text for token in tokens]),
        printed(
            f"probabilities after position {place}", list(expected.values()), [token.probability for token in tokens]
        ),
    ]

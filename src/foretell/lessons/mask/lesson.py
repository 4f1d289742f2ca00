"""The lesson on the mask."""

from __future__ import annotations

import numpy as np

from foretell.lessons.check import Check, same
from foretell.lessons.lesson import Lesson
from foretell.lessons.mask.page import make_page
from foretell.lessons.mask.values import BORDER, LEAK, WATCHED, Trial, make_peeking, make_sound, masks, try_model
from foretell.model.decoder import Decoder
from foretell.typesetting.document import DocumentSection

TWO_DOCUMENTS = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
WINDOW = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


class MaskLesson(Lesson):
    """A sound model and one that peeks. `broken` shows the second one too; the checks try both in any case."""

    def __init__(self, broken: bool = False, sound: Decoder | None = None, peeking: Decoder | None = None):
        self.broken = broken
        self.sound = try_model(sound or make_sound())
        self.peeking = try_model(peeking or make_peeking())

    def document(self) -> DocumentSection:
        return make_page(self.sound, self.peeking if self.broken else None)

    def checks(self) -> list[Check]:
        causal, window, documents = masks().values()
        return [
            same("the causal mask", np.tril(np.ones((4, 4), dtype=int)), causal),
            same("a window of 2", WINDOW, window),
            same("two documents in a row", TWO_DOCUMENTS, documents),
            *check_sound(self.sound),
            *check_peeking(self.peeking),
        ]


def check_sound(trial: Trial) -> list[Check]:
    """The future moves, the past does not, and the trainer agrees."""
    return [
        same("sound model: modules whose past moved", [], trial.leaked),
        same("sound model: logits whose words were exchanged moved", True, all(trial.moved["head"][BORDER:])),
        same("sound model: what the trainer objects to", None, trial.refusal),
    ]


def check_peeking(trial: Trial) -> list[Check]:
    """The past moves from the leak on, and the trainer names it."""
    named = (trial.refusal or "nothing").partition(",")[0]
    return [
        same("peeking model: modules whose past moved", list(WATCHED[WATCHED.index(LEAK) :]), trial.leaked),
        same("peeking model: the trainer's finding", f"{LEAK} sees the future", named),
    ]

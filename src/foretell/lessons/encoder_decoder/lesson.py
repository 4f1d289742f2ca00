"""The lesson on the decoder that translates, as far as its source can be computed again."""

from __future__ import annotations

import numpy as np

from foretell.lessons.check import Check, near, same
from foretell.lessons.encoder_decoder.page import make_page
from foretell.lessons.encoder_decoder.printed import CROSS, HEAD_WIDTH, SCALED, SOURCE, TARGET
from foretell.lessons.encoder_decoder.values import Everything, compute
from foretell.lessons.lesson import Lesson
from foretell.typesetting.document import DocumentSection

CUT = 0.01  # the notes leave out what comes after the second digit
SAME = 1e-12


class EncoderDecoder(Lesson):
    """Masked attention, then attention to another sentence."""

    def __init__(self, found: Everything | None = None):
        self.found = found or compute()

    def document(self) -> DocumentSection:
        return make_page(self.found)

    def checks(self) -> list[Check]:
        return [
            *check_scores(self.found),
            *check_masks(self.found),
            *check_across(self.found),
            *check_layer(self.found),
        ]


def check_scores(found: Everything) -> list[Check]:
    """The printed scores are whole numbers divided by 8: the head's width is 64."""
    return [near(f"scaled scores are whole numbers over √{HEAD_WIDTH}", SCALED, found.exact, CUT)]


def check_masks(found: Everything) -> list[Check]:
    """One row more is hidden each time; what is left is a distribution."""
    hidden = [int(np.isinf(scores).sum()) for scores in found.masked]
    upper = np.triu(np.ones((len(TARGET), len(TARGET))), k=1)
    return [
        same("the mask grows row by row: hidden scores", [0, 3, 5, 6], hidden),
        same("at the end, all above the diagonal is hidden", upper, np.isinf(found.masked[-1]).astype(float)),
        near("each row of the softmax sums to 1", np.ones(len(TARGET)), found.weights.sum(1), SAME),
        same("nothing is taken from later words", np.zeros((4, 4)), found.weights * upper),
        same(
            "masked attention: words that move with the last one",
            [False, False, False, True],
            moved(found.moved_by_target),
        ),
    ]


def check_across(found: Everything) -> list[Check]:
    """Every word of the target sees every word of the source."""
    shape = [len(TARGET), len(SOURCE)]
    return [
        same("shape of the printed product", shape, list(np.shape(CROSS))),
        same("shape of Q Kᵀ by the textbook", shape, list(found.layer.cross_weights.shape)),
        near("each row of the softmax across sums to 1", np.ones(4), found.cross_weights.sum(1), SAME),
        same("no mask: every weight is above 0", True, bool((found.layer.cross_weights > 0).all())),
        same("words that move with the last source word", [True] * 4, moved(found.moved_by_source)),
    ]


def check_layer(found: Everything) -> list[Check]:
    """Concatenate and project; one row a word of the target all along."""
    layer = found.layer
    return [
        near("M = Concat(Z1 .. Zh) W0", np.concatenate(layer.heads).T @ layer.output_weight.T, layer.M.T, SAME),
        *(
            same(f"words in {name}", len(TARGET), value.shape[1])
            for name, value in (("the embedding", layer.embedded), ("M", layer.M), ("the output", layer.fed))
        ),
        same("words in the encoder's output", len(SOURCE), layer.R.shape[1]),
    ]


def moved(distances: list[float]) -> list[bool]:
    """Which words moved at all."""
    return [distance > 0 for distance in distances]

"""The lesson on the smallest decoder: the walk, and its figures checked."""

from __future__ import annotations

import math

import numpy as np

from foretell.lessons.check import Check, near, printed, same
from foretell.lessons.lesson import Lesson
from foretell.lessons.smallest_decoder import printed as figures
from foretell.lessons.smallest_decoder.model import Weights, draw_weights
from foretell.lessons.smallest_decoder.page import make_page
from foretell.lessons.smallest_decoder.values import TARGETS, compute
from foretell.typesetting.document import DocumentSection

TEXTBOOK_BOUND = 1e-12  # two ways of adding up the same float64 products
FLOAT32_BOUND = 1e-6  # the objective and the embedding hand out float32

PRINTED = {  # value -> (what it is, what is printed of it, digits)
    "token": ("word embedding", figures.TOKEN_EMBEDDING[:-1], 4),
    "position": ("position embedding", figures.POSITION_EMBEDDING, 4),
    "stream": ("x = word + position", figures.STREAM, 4),
    "scaled": ("scaled scores", figures.SCALED, 2),
    "weights": ("masked attention weights", figures.WEIGHTS, 4),
    "value": ("values", figures.VALUES, 4),
    "output": ("attention output", figures.OUTPUT, 4),
    "probabilities": ("next-token probabilities", figures.PROBABILITIES, 6),
}
PRINTED_WEIGHTS = {"query": figures.QUERY_WEIGHT, "key": figures.KEY_WEIGHT, "value": figures.VALUE_WEIGHT}


class SmallestDecoder(Lesson):
    """Every number of one attention head and its head, to the loss and the chain rule."""

    def __init__(self, weights: Weights | None = None):
        self.found = compute(draw_weights() if weights is None else weights)

    def document(self) -> DocumentSection:
        return make_page(self.found)

    def checks(self) -> list[Check]:
        return [*self.printed_figures(), *self.two_ways(), *self.loss_and_chain_rule(), *self.same_in_every_row()]

    def printed_figures(self) -> list[Check]:
        """What the text prints."""
        found = self.found
        weights = [printed(f"{name} weight", figure, found.weight(name), 4) for name, figure in PRINTED_WEIGHTS.items()]
        values = [printed(what, figure, found.model[name], digits) for name, (what, figure, digits) in PRINTED.items()]
        return [*weights, *values]

    def two_ways(self) -> list[Check]:
        """The textbook's numbers are the model's."""
        return [
            near(f"{name}: the textbook's and the model's", value, self.found.model[name], TEXTBOOK_BOUND)
            for name, value in self.found.textbook.items()
        ]

    def loss_and_chain_rule(self) -> list[Check]:
        """The loss is the sum over the printed probabilities of the targets; the first word has none."""
        found = self.found
        targets = [row[target] for row, target in zip(figures.PROBABILITIES, TARGETS, strict=True)]
        expected = -sum(math.log(probability) for probability in targets)
        rounding = sum(0.5e-6 / probability for probability in targets)  # of the printed figures, in their logarithms
        return [
            near("loss, from the printed probabilities", expected, sum(found.layouts["alone"]), rounding),
            near("log P of the sentence is minus the loss", -sum(found.layouts["alone"]), found.chain.logprob, 1e-5),
            same("P of the first word", None, found.chain.logprobs[0]),
            near("the last token's vector", found.model["output"][-1], found.chain.representation, FLOAT32_BOUND),
        ]

    def same_in_every_row(self) -> list[Check]:
        """Alone, padded, packed: the same losses."""
        alone, *others = self.found.layouts.items()
        return [near(f"losses {name} and {alone[0]}", alone[1], found, FLOAT32_BOUND) for name, found in others] + [
            same("losses are numbers", True, bool(np.isfinite(list(self.found.layouts.values())).all()))
        ]

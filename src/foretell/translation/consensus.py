"""The hypothesis of a beam that is closest to all: minimum Bayes risk decoding (Kumar and Byrne 2004).

The most likely sentence may be unlike all other likely ones. So every hypothesis is compared with all of them by chrF
(Popović 2015), and the one with the highest mean is taken, weighted by their probabilities.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from foretell.generation.beam import Hypothesis, length_penalty
from foretell.translation.pairs import Vocabulary

LONGEST_GRAM, RECALL_WEIGHT = 6, 2  # chrF's defaults
Grams = list[Counter[str]]  # the counts of runs of 1, 2, ... characters


class Candidates:
    """The hypotheses of a beam with their texts, compared once for all length penalties."""

    def __init__(self, beam: Sequence[Hypothesis], vocabulary: Vocabulary):
        self.beam, self.texts = beam, [vocabulary.decode(each.ids) for each in beam]
        self.similarities = similarities_of(self.texts)

    def best(self, alpha: float) -> int:
        """The index of the hypothesis that is closest to all, weighted under the length penalty `alpha`."""
        return closest_to_all(self.similarities, weights_of(self.beam, alpha))


def similarities_of(texts: Sequence[str]) -> list[list[float]]:
    """chrF of each text with each as its reference."""
    grams = [character_grams(text) for text in texts]
    return [[chrf(text, reference) for reference in grams] for text in grams]


def closest_to_all(similarities: Sequence[Sequence[float]], weights: Sequence[float]) -> int:
    """The index of the text with the highest weighted mean of its similarities; of equal ones, the first."""

    def agreement(index: int) -> float:
        return sum(weight * similarity for weight, similarity in zip(weights, similarities[index], strict=True))

    return max(range(len(similarities)), key=agreement)


def weights_of(beam: Sequence[Hypothesis], alpha: float) -> list[float]:
    """Weights of hypotheses: their probabilities if alpha is 0; a length penalty favours longer ones."""
    penalties = [length_penalty(len(each.ids) + (each.finish_reason == "end"), alpha) for each in beam]
    scores = [each.logprob * max(penalties) / penalty for each, penalty in zip(beam, penalties, strict=True)]
    return [math.exp(score - max(scores)) for score in scores]


def character_grams(text: str) -> Grams:
    """The runs of characters of a text without spaces, by their length."""
    letters = "".join(text.split())
    return [
        Counter(letters[first : first + size] for first in range(len(letters) - size + 1))
        for size in range(1, LONGEST_GRAM + 1)
    ]


def chrf(written: Grams, expected: Grams) -> float:
    """chrF of a text with one reference, from 0 to 1: the F-score of mean precision and mean recall of runs."""
    pairs = [(own, theirs) for own, theirs in zip(written, expected, strict=True) if own and theirs]
    shared = [(own & theirs).total() for own, theirs in pairs]
    precisions = [count / own.total() for count, (own, _) in zip(shared, pairs, strict=True)]
    recalls = [count / theirs.total() for count, (_, theirs) in zip(shared, pairs, strict=True)]
    precision, recall = sum(precisions), sum(recalls)
    if not precision or not recall:
        return 0.0
    factor = RECALL_WEIGHT**2
    return (1 + factor) * precision * recall / (factor * precision + recall) / len(pairs)

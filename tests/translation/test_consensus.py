"""Which hypothesis of a beam is taken."""

from __future__ import annotations

import pytest

from foretell.generation.beam import Hypothesis
from foretell.translation.consensus import character_grams, chrf, closest_to_all, similarities_of, weights_of

TEXTS = ["He is asleep.", "He is probably asleep.", "Il dort probablement.", "Ça", "He is  asleep", "眠っています。"]


@pytest.mark.parametrize("written", TEXTS)
@pytest.mark.parametrize("expected", TEXTS)
def test_the_similarity_is_sacrebleus_chrf(written: str, expected: str) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    score = sacrebleu.CHRF().sentence_score(written, [expected]).score
    assert 100 * chrf(character_grams(written), character_grams(expected)) == pytest.approx(score, abs=1e-6)


def test_a_text_that_others_resemble_is_taken_before_a_likelier_one() -> None:
    texts = ["It rains.", "He is asleep.", "He is asleep!"]
    assert closest_to_all(similarities_of(texts), [0.4, 0.25, 0.35]) == 2
    assert closest_to_all(similarities_of(texts), [0.6, 0.2, 0.2]) == 0
    assert closest_to_all(similarities_of(["", "", ""]), [1.0, 1.0, 1.0]) == 0


def test_weights_are_probabilities_or_favour_long_hypotheses() -> None:
    short, long = Hypothesis([1], -2.0, 0.0, "end"), Hypothesis([1] * 9, -3.0, 0.0, "end")
    assert weights_of([short, long], 0) == pytest.approx([1.0, 0.36787944])
    assert weights_of([short, long], 1)[0] < weights_of([short, long], 1)[1] == 1.0

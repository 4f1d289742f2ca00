"""Effects of words: left out one at a time, or as Shapley values."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.errors import UsageError
from foretell.insight.attribution.shapley import Masks, Numbers, WordEffects
from foretell.insight.attribution.word_effects import (
    WordRow,
    joined_to_fit,
    largest_in_order,
    sum_parts,
    word_effects,
    word_table,
)
from foretell.text.words import Word

WORDS = [Word(f" {index}", (index,)) for index in range(100)]


def redundant(masks: Masks) -> Numbers:
    """One of the first two words is enough for 4; the third adds 1."""
    return np.where(masks[:, :2].any(1), 4.0, 0.0) + masks[:, 2].astype(float)


def test_effects_of_redundant_words_add_up_only_as_shapley_values() -> None:
    alone = word_effects(redundant, 3)
    assert alone.values == [0, 0, 1]
    assert (alone.method, alone.full, alone.empty, alone.passes) == ("left out", 5, None, 4)
    shapley = word_effects(redundant, 3, passes=8)
    assert shapley.values == pytest.approx([2, 2, 1])
    assert (shapley.method, shapley.full, shapley.empty, shapley.passes) == ("Shapley", 5, 0, 8)
    assert sum_parts(alone, "word") == []
    assert "exact, from all 8 subsets of the words" in str(sum_parts(shapley, "word"))


def test_errors_are_shown_for_sampled_effects_alone() -> None:
    sampled = word_effects(lambda masks: masks.sum(1) ** 3.0, 20, passes=200)
    assert min(sampled.errors) > 0
    assert f"from {sampled.permutations} random orders, {sampled.passes} passes" in str(sum_parts(sampled, "word"))
    assert word_table([WordRow(" a", 1, 0.25, {})], 1, "word").header == ("effect", "error", "", "word")
    table = word_table([WordRow(" a", 1, 0, {"direct": "0"}), WordRow("\n", 0.5, 0, {"direct": "1"})], 1, "word")
    assert table.header == ("effect", "", "direct", "word")
    assert [row[-1] for row in table.rows] == ["'a'", r"'\n'"]


def test_words_are_joined_until_the_passes_suffice() -> None:
    assert joined_to_fit([WORDS], {0}, None) == [WORDS]
    assert joined_to_fit([WORDS], {0}, 4000) == [WORDS]
    assert len(joined_to_fit([WORDS], {0}, 1000)[0]) == 50
    two = joined_to_fit([WORDS[:6], WORDS], {0}, 64)
    assert [len(words) for words in two] == [6, 100]  # the words of the second text have no effect
    with pytest.raises(UsageError, match="give at least 4"):
        joined_to_fit([WORDS, WORDS], {0, 1}, 3)


def test_the_largest_effects_of_a_long_text_are_shown_in_order() -> None:
    rows = [WordRow(str(index), float(index), 0, {}) for index in range(70)]
    assert [row.text for row in largest_in_order(rows)] == [str(index) for index in range(6, 70)]
    assert WordEffects([], [], 0, 0, 1, 0).to_json() == {
        "method": "Shapley",
        "full": 0,
        "empty": 0,
        "passes": 1,
        "permutations": 0,
    }

"""Effects of words that are left out one at a time, and their tables."""

from __future__ import annotations

import numpy as np

from foretell.insight.attribution.word_effects import (
    Masks,
    Numbers,
    WordRow,
    largest_in_order,
    leave_out,
    word_table,
)


def redundant(masks: Masks) -> Numbers:
    """One of the first two words is enough for 4; the third adds 1."""
    return np.where(masks[:, :2].any(1), 4.0, 0.0) + masks[:, 2].astype(float)


def test_a_number_without_each_word() -> None:
    assert leave_out(redundant, 3) == (5, [5, 5, 4])


def test_a_table_has_further_columns_and_quotes_words() -> None:
    table = word_table([WordRow(" a", 1, {"direct": "0"}), WordRow("\n", 0.5, {"direct": "1"})], 1, "word")
    assert table.header == ("effect", "", "direct", "word")
    assert [row[-1] for row in table.rows] == ["'a'", r"'\n'"]


def test_the_largest_effects_of_a_long_text_are_shown_in_order() -> None:
    rows = [WordRow(str(index), float(index), {}) for index in range(70)]
    assert [row.text for row in largest_in_order(rows)] == [str(index) for index in range(6, 70)]

"""Aggregation and forecasting: each fact has a mistake that it would notice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from foretell.lessons.aggregation import values
from foretell.lessons.aggregation.lesson import Aggregation
from foretell.model.attention import SDPAttention


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"weighted_sum": np.array([2, 1, 1])}, "wH"),
        ({"mask": np.ones((3, 3), dtype=int)}, "the model's mask is lower triangular"),
        ({"masked_sums": np.array([[2, -1, 1]] * 3)}, "the mask times H"),
        ({"forecast": [0] * 8}, "forecast"),
        ({"sure": [0.5] * 8}, "next number after a context of 2"),
    ],
)
def test_a_wrong_value_is_noticed(lessons, failures, changes, what):
    assert what in failures(Aggregation(replace(lessons["aggregation"].found, **changes)).checks())


def test_a_model_whose_positions_see_later_ones_gives_another_answer_to_a_prefix(monkeypatch):
    def without_mask(core, query, key, value, mask):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    sound = values.prefix_difference(values.make_small("learned"))
    monkeypatch.setattr(SDPAttention, "forward", without_mask)
    assert values.prefix_difference(values.make_small("learned")) > 1e6 * sound


def test_the_series_goes_up_and_down():
    assert values.series(9) == [0, 1, 2, 3, 2, 1, 0, 1, 2]
    assert values.series(3, start=4) == [2, 1, 0]

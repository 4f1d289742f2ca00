"""The lesson on aggregation and forecasting: each check fails for a wrong value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretell.lessons import aggregation
from foretell.model.attention import SDPAttention


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"weighted_sum": np.array([2, 1, 1])}, "wH"),
        ({"mask": np.ones((3, 3), dtype=int)}, "the model's mask is lower triangular"),
        ({"masked_sums": np.array([[2, -1, 1]] * 3)}, "the mask times H"),
        ({"forecast": [0] * 8}, "forecast"),
        ({"associations": np.eye(3)}, "A is not symmetric"),
        ({"elementwise": np.array([2, 0, 3])}, "and give another sum for other values"),
        (
            {"gradients": {"recurrent": [1.0], "attention": [1.0]}},
            "a recurrent network's gradient over the longest distance",
        ),
        ({"probabilities": [0.5] * 8}, "next number after a context of 2"),
    ],
)
def test_a_wrong_value_fails_its_check(lessons, altered, failures, changes, what):
    assert what in failures(altered(lessons["aggregation"], **changes).checks())


def test_without_a_mask_prefixes_differ_from_the_window(monkeypatch):
    def without_mask(core, query, key, value, mask):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    correct = aggregation.prefix_difference(aggregation.make_untrained("learned"))
    monkeypatch.setattr(SDPAttention, "forward", without_mask)
    assert aggregation.prefix_difference(aggregation.make_untrained("learned")) > 1e6 * correct


def test_series_goes_up_and_down():
    assert aggregation.series(9) == [0, 1, 2, 3, 2, 1, 0, 1, 2]
    assert aggregation.series(3, start=4) == [2, 1, 0]

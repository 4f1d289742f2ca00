"""A comparison with the reader names the first bound that it misses."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest

from foretell.convert.parity import Comparison, Probe, compare

PASSING = Comparison("a b", 5, logit_difference=9e-5, logit_bound=1e-4, divergence=0.0, greedy_tokens=3, greedy_same=3)


def test_within_the_bounds_there_is_no_problem() -> None:
    assert PASSING.problem() is None


@pytest.mark.parametrize(
    ("missed", "message"),
    [
        ({"logit_difference": 2e-4}, "logits differ by 0.0002 on 'a b'; allowed: 0.0001"),
        ({"logit_difference": nan}, "logits differ by nan"),
        ({"divergence": 2e-6}, "next tokens diverge by 2e-06 nats"),
        ({"divergence": nan}, "next tokens diverge by nan"),
        ({"greedy_same": 2}, "the greedy text differs after 2 of 3 tokens on 'a b'"),
        ({"greedy_same": 2, "text": None}, "on tokens spread over the vocabulary"),
    ],
)
def test_every_missed_bound_is_a_problem(missed: dict[str, Any], message: str) -> None:
    problem = replace(PASSING, **missed).problem()
    assert problem is not None
    assert message in problem


def test_a_token_that_the_reader_would_not_choose_is_different() -> None:
    probe = Probe(None, [0], [1, 0])
    ours = np.array([[0.0, 3.0], [3.0, 0.0], [0.0, 0.0]])
    theirs = np.array([[0.0, 3.0], [0.0, 3.0], [0.0, 0.0]])
    comparison = compare(probe, ours, theirs)
    assert (comparison.greedy_same, comparison.greedy_tokens) == (1, 2)
    assert (comparison.logit_difference, comparison.tokens) == (3.0, 3)
    assert compare(probe, ours, ours).greedy_same == 2

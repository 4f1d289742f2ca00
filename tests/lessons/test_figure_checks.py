"""Comparisons of printed and computed figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from foretell.lessons.lesson import above, below, near, printed, same


def test_printed_accepts_exactly_what_rounds_to_the_figure():
    assert printed("x", [0.4841], [0.48414999]).passed
    assert not printed("x", [0.4841], [0.48416]).passed
    assert printed("x", 0.226309, 0.22630851, digits=6).passed


def test_other_shapes_and_nan_fail():
    assert not near("x", [1.0, 2.0], [1.0], 1.0).passed
    assert not near("x", [1.0], [float("nan")], 1.0).passed
    assert not below("x", 1, float("nan")).passed
    assert not above("x", 1, float("nan")).passed


def test_near_accepts_equal_infinities_at_equal_indices():
    assert near("x", [-np.inf, 1.0], [-np.inf, 1.0], 0.0).passed
    assert not near("x", [-np.inf, 1.0], [1.0, -np.inf], 0.0).passed


@pytest.mark.parametrize(
    ("expected", "got", "passed"), [(None, None, True), ("a", "b", False), ([1, 2], [1, 3], False)]
)
def test_same_compares_any_values(expected, got, passed):
    assert same("x", expected, got).passed is passed


def test_difference_names_the_index_of_the_largest_error():
    check = printed("weights", [[1.0, 0.0], [0.4841, 0.5159]], [[1.0, 0.0], [0.4841, 0.6]])
    assert check.difference() == "weights [1, 1]: expected 0.5159, got 0.6"
    assert same("name", "a", None).difference() == "name: expected a, got None"
    assert same("name", ["a", "b"], ["a", "c"]).difference() == "name [1]: expected b, got c"
    assert near("sum", [1.0], [float("nan")], 0.1).difference() == "sum [0]: expected 1.0, got nan"


def test_a_check_is_valid_json_with_infinities_and_nan():
    check = near("x", np.array([-np.inf, 1.0]), np.array([np.nan, 1.0]), 0.1)
    assert json.loads(json.dumps(check.to_json(), allow_nan=False)) == {
        "what": "x",
        "expected": ["-inf", 1.0],
        "got": ["nan", 1.0],
        "tolerance": 0.1,
        "passed": False,
    }

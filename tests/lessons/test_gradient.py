"""The lesson on the gradient: a wrong derivative, weight or step fails its checks."""

from __future__ import annotations

import pytest

from foretell.lessons.gradient import VALUE, WORD, GradientLesson, central_differences
from foretell.lessons.smallest import draw_weights


@pytest.fixture(scope="module")
def lesson():
    return GradientLesson()


@pytest.mark.parametrize("path", [VALUE, WORD, "head.weight", "embed.position.weight"])
def test_a_wrong_derivative_fails(lesson, altered, failures, path):
    wrong = lesson.by_hand | {path: lesson.by_hand[path] * 1.001}
    failed = failures(altered(lesson, by_hand=wrong).checks())
    assert f"{path}: by hand and by autograd" in failed
    assert path not in (VALUE, WORD) or f"{path}: by hand and by differences" in failed


def test_a_changed_weight_fails(failures):
    weights = draw_weights()
    weights["head.bias"] = weights["head.bias"] + 0.01 * weights["head.bias"].abs().flip(0)
    assert failures(GradientLesson(weights).checks()) == ["loss"]


def test_a_step_in_the_wrong_direction_fails(lesson, altered, failures):
    assert failures(altered(lesson, new_loss=lesson.loss + 0.1).checks()) == [
        "the loss after one step",
        "the fall of the loss",
    ]


def test_differences_agree_with_the_hand_where_the_loss_is_smooth(lesson):
    assert abs(central_differences(lesson.weights, VALUE) - lesson.by_hand[VALUE]).max() < 1e-8

"""The lesson on the mask: it fails if the correct model leaks, or if the broken one does not."""

from __future__ import annotations

import pytest

from foretell.lessons.mask import LEAK, MaskLesson, make_correct, make_peeking


def test_a_leak_in_the_correct_model_fails(failures):
    failed = failures(MaskLesson(correct=make_peeking()).checks())
    assert failed == ["correct model: modules that see the future", "correct model: training error"]


def test_a_broken_model_without_a_leak_fails(failures):
    failed = failures(MaskLesson(peeking=make_correct()).checks())
    assert failed == ["model without a mask: modules that see the future", "model without a mask: training error"]


@pytest.mark.parametrize("broken", [True, False])
def test_the_training_error_is_shown_on_request(broken):
    assert (f"foretell: {LEAK} sees the future" in str(MaskLesson(broken))) is broken

"""The lesson on the mask: a model that is sound where it should leak, or leaks where it should be sound, is noticed."""

from __future__ import annotations

import pytest

from foretell.lessons.mask.lesson import MaskLesson
from foretell.lessons.mask.values import LEAK, make_peeking, make_sound


def test_a_sound_model_that_leaks_is_noticed(failures):
    failed = failures(MaskLesson(sound=make_peeking()).checks())
    assert failed == ["sound model: modules whose past moved", "sound model: what the trainer objects to"]


def test_a_leak_that_is_not_found_is_noticed(failures):
    failed = failures(MaskLesson(peeking=make_sound()).checks())
    assert failed == ["peeking model: modules whose past moved", "peeking model: the trainer's finding"]


@pytest.mark.parametrize("broken", [True, False])
def test_the_refusal_is_shown_when_it_is_asked_for(broken):
    assert (f"foretell: {LEAK} sees the future" in str(MaskLesson(broken))) is broken

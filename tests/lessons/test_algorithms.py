"""The lesson on the formal algorithms: each check fails for its mistake."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from foretell.lessons import algorithms
from foretell.lessons.algorithms import check_listings, check_models
from foretell.model import presets
from foretell.textbook import attention
from foretell.textbook.attention import bidirectional_mask
from foretell.textbook.transformer import tempered


@pytest.fixture
def lesson(lessons, altered):
    return altered(lessons["algorithms"])


def test_a_missing_mask_in_the_textbook_fails(monkeypatch, lesson, failures):
    monkeypatch.setattr(attention, "unidirectional_mask", lambda length: bidirectional_mask(length, length))
    lesson.compute_attention()
    failed = failures(lesson.checks())
    assert {"the mask, textbook", "masked softmax: 0 above the diagonal"} <= set(failed)
    assert "masked: positions that change with the last word" in failed


def test_code_that_is_not_the_textbooks_fails(monkeypatch, lesson, failures):
    monkeypatch.setitem(algorithms.LISTINGS, "DInference", (tempered,))
    failed = failures(check_listings(lesson.document()))
    monkeypatch.setitem(algorithms.LISTINGS, "DInference", (attention.attention,))  # in another file
    assert (
        failed == failures(check_listings(lesson.document())) == ["DInference: code shown that is not the textbook's"]
    )


def test_an_unscaled_single_query_fails(monkeypatch, lesson, failures):
    monkeypatch.setattr(attention, "math", SimpleNamespace(sqrt=lambda number: 1.0))
    lesson.compute_attention()
    assert failures(lesson.checks()) == ["single-query attention scales"]


def test_a_model_with_the_overwriting_residual_fails(lesson, altered, failures):
    wrong = altered(lesson, model=lesson.overwriting)
    assert failures(wrong.checks()) == ["the model and GPT-2's residual"]


def test_two_equal_forms_fail(lesson, altered, failures):
    same_form = altered(lesson, overwriting=lesson.residual, listing=lesson.residual)
    assert failures(same_form.checks()) == [
        "the norm inside the loop changes P by",
        "the listing and GPT-2's residual differ by",
    ]


def test_a_loss_with_another_logarithm_fails(lesson, altered, failures):
    failed = failures(altered(lesson, loss_of_cat=lesson.loss_of_cat / np.log(2)).checks())
    assert failed == ["loss at t = 1", "and the cross entropy with a one-hot target"]


def test_a_loss_that_does_not_fall_fails(lesson, altered, failures):
    assert len(failures(altered(lesson, losses=[2.0, *[1.9] * 39]).checks())) == 1


def test_an_inverted_temperature_fails(lesson, altered, failures):
    assert len(failures(altered(lesson, sampler=lesson.sampler[::-1]).checks())) == 2


def test_a_preset_of_another_shape_fails(monkeypatch, failures):
    monkeypatch.setitem(presets.PRESETS, "gpt2-xl", {**presets.PRESETS["gpt2-xl"], "num_layers": 40})
    assert failures(check_models()) == ["gpt2-xl: num_layers", "gpt2-xl: parameters"]

"""The lesson on the formal algorithms: each check fails for its mistake."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from foretell.lessons import algorithms_lesson, algorithms_values
from foretell.lessons.algorithms_lesson import AlgorithmsLesson, check_models
from foretell.lessons.algorithms_listings import D_INFERENCE
from foretell.lessons.algorithms_values import compute_attention
from foretell.model import presets
from foretell.textbook import attention
from foretell.textbook.attention import bidirectional_mask


@pytest.fixture(scope="module")
def lesson(lessons):
    return lessons["algorithms"]


def with_decoder(lesson, **changes):
    return AlgorithmsLesson(lesson.attention, replace(lesson.decoder, **changes)).checks()


def test_a_missing_mask_in_the_textbook_fails(monkeypatch, lesson, failures):
    monkeypatch.setattr(algorithms_values, "unidirectional_mask", lambda length: bidirectional_mask(length, length))
    failed = failures(AlgorithmsLesson(compute_attention(), lesson.decoder).checks())
    assert {"the mask, textbook", "masked softmax: 0 above the diagonal"} <= set(failed)
    assert "masked: positions that change with the last word" in failed


def test_code_that_is_not_the_textbooks_fails(monkeypatch, failures):
    other = dataclasses.replace(D_INFERENCE, lines=(("4", "P ← DTransformer(x)", "P = model(sequence)[0]"),))
    monkeypatch.setattr(algorithms_lesson, "LISTINGS", (other,))
    assert failures(algorithms_lesson.check_listings()) == ["DInference: code shown that is not the textbook's"]


def test_an_unscaled_single_query_fails(monkeypatch, lesson, failures):
    monkeypatch.setattr(attention, "math", SimpleNamespace(sqrt=lambda number: 1.0))
    assert failures(AlgorithmsLesson(compute_attention(), lesson.decoder).checks()) == ["single-query attention scales"]


def test_a_model_with_the_overwriting_residual_fails(lesson, failures):
    assert failures(with_decoder(lesson, model=lesson.decoder.overwriting)) == ["the model and GPT-2's residual"]


def test_two_equal_forms_fail(lesson, failures):
    same_form = with_decoder(lesson, overwriting=lesson.decoder.residual, listing=lesson.decoder.residual)
    assert failures(same_form) == [
        "the norm inside the loop changes P by",
        "the listing and GPT-2's residual differ by",
    ]


def test_a_loss_with_another_logarithm_fails(lesson, failures):
    failed = failures(with_decoder(lesson, loss_of_cat=lesson.decoder.loss_of_cat / np.log(2)))
    assert failed == ["loss at t = 1", "and the cross entropy with a one-hot target"]


def test_a_loss_that_does_not_fall_fails(lesson, failures):
    assert len(failures(with_decoder(lesson, losses=[2.0, 1.9]))) == 1


def test_an_inverted_temperature_fails(lesson, failures):
    assert len(failures(with_decoder(lesson, sampler=lesson.decoder.sampler[::-1]))) == 2


def test_a_preset_of_another_shape_fails(monkeypatch, failures):
    monkeypatch.setitem(presets.PRESETS, "gpt2-xl", {**presets.PRESETS["gpt2-xl"], "num_layers": 40})
    assert failures(check_models()) == ["gpt2-xl: num_layers", "gpt2-xl: parameters"]

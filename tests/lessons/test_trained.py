"""Lessons that train a model: their figures can fail, and the model is saved with its examples."""

from __future__ import annotations

from dataclasses import replace

import pytest

import foretell
from foretell.lessons.induction import NEXT, TEXT, InductionLesson
from foretell.lessons.trained import TrainedLesson
from foretell.serving.models import read_examples


class UntrainedLesson(InductionLesson):
    steps = 1


def test_a_model_without_induction_heads_fails(failures):
    failed = failures(UntrainedLesson().checks())
    assert "mean weight on letters that followed the same letter" in failed
    assert "share of letters right" in failed and "loss of accuracy without this head" in failed


@pytest.mark.long
def test_a_head_without_an_effect_fails(lessons, altered, failures):
    lesson = lessons["induction"]
    name, *_ = lesson.test.without
    without = {**lesson.test.without, name: lesson.test.right}
    test = replace(lesson.test, without=without)
    assert failures(altered(lesson, test=test).checks()) == ["loss of accuracy without this head"]


@pytest.mark.parametrize("name", ["sort", pytest.param("induction", marks=pytest.mark.long)])
def test_the_model_is_saved_with_examples(lessons, name, tmp_path):
    lesson = lessons[name]
    assert isinstance(lesson, TrainedLesson)
    lesson.save(tmp_path / name)
    model = foretell.load(tmp_path / name)
    examples = read_examples(tmp_path / name)
    assert len(examples) == 3
    for example in examples:
        assert len(model.encode_fitting(example.text)) <= model.config.context_length
        assert example.layer < model.config.num_layers and example.head < model.config.num_heads


@pytest.mark.long
def test_the_saved_model_goes_on_with_the_text(lessons, tmp_path):
    lessons["induction"].save(tmp_path / "induction")
    model = foretell.load(tmp_path / "induction")
    [after] = foretell.next_tokens(model, TEXT, top=1)
    assert after.tokens[0].text == NEXT[0]

"""The lesson on the toy: every seed learns the answer, and wrong training fails the checks."""

from __future__ import annotations

import pytest

from foretell.errors import ContextLengthError, TokenizerError
from foretell.lessons import toy
from foretell.lessons.toy import LEARNING_RATE, LIMIT, ToyLesson


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 20))])
def test_every_seed_ends_below_the_limit_and_answers_both_prompts(seed, failures):
    lesson = ToyLesson(seed)
    assert lesson.epochs[-1] < LIMIT
    assert [answer.generated for answer in lesson.answers] == [toy.answer_ids()] * 2
    assert [answer.finish_reason for answer in lesson.answers] == ["end"] * 2
    assert failures(lesson.checks()) == []


def test_adams_first_step_has_the_size_of_the_learning_rate(lessons):
    first = lessons["toy"].steps[0]
    assert abs(first.after - first.before) == pytest.approx(LEARNING_RATE, rel=1e-5)


def test_another_optimizer_fails(monkeypatch, failures):
    def uncorrected(recorded, mean, square, step, after):
        return toy.AdamStep(recorded["gradient"], mean, square, mean, square, recorded["before"], after)

    monkeypatch.setattr(toy, "adam_step", uncorrected)
    assert failures(ToyLesson().checks()) == ["steps of Adam by hand and by the optimizer"]


def test_a_wrong_gradient_fails(lessons, altered, failures):
    lesson = lessons["toy"]
    wrong = altered(lesson, gradient=lesson.gradient * 1.001)
    assert failures(wrong.checks()) == ["gradient and finite differences"]


def test_too_few_epochs_fail(monkeypatch, failures):
    monkeypatch.setattr(toy, "EPOCHS", 4)
    assert "loss at the end" in failures(ToyLesson().check_outcome())


def test_an_untrained_toy_fails(monkeypatch, failures):
    monkeypatch.setattr(toy, "train_on", lambda decoder, *rest: [1.0, 1.0])
    assert len(failures(ToyLesson().check_outcome())) >= 2


def test_the_mask_left_out_after_training_fails_the_check_if_it_makes_no_difference(lessons, altered, failures):
    lesson = altered(lessons["toy"], without_mask=[1.0] * 7)
    assert failures(lesson.checks()) == ["the least P of a word, without the mask"]


@pytest.mark.parametrize(
    ("text", "prompt"),
    [("How is living in Amsterdam?", toy.PROMPTS[0]), ("living in amsterdam is how <EOS>", toy.PROMPTS[1])],
)
def test_a_question_is_answered_live(lessons, text, prompt):
    asked, answer = toy.ask(lessons["toy"].decoder, text)
    assert (asked, answer.generated) == (prompt, toy.answer_ids())


@pytest.mark.parametrize(("text", "error"), [("how is paris", TokenizerError), ("how " * 20, ContextLengthError)])
def test_a_question_that_the_toy_cannot_read_is_refused(lessons, text, error):
    with pytest.raises(error):
        toy.ask(lessons["toy"].decoder, text)


def test_another_seed_gives_other_losses(lessons):
    other = ToyLesson(seed=2)
    assert other.losses[0] != lessons["toy"].losses[0]
    assert "seed 2" in " ".join(str(other).split())

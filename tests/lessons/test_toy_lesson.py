"""The lesson on the toy: every seed learns the answer, and wrong training fails the checks."""

from __future__ import annotations

import pytest
import torch

from foretell.errors import ContextLengthError, TokenizerError
from foretell.lessons import toy_values as toy
from foretell.lessons.toy_lesson import ToyLesson, check_attention, check_first_steps, check_outcome
from foretell.lessons.toy_values import LEARNING_RATE, LIMIT


@pytest.mark.parametrize("seed", range(20))
def test_every_seed_ends_below_the_limit_and_answers_both_prompts(seed, failures):
    run = toy.run_toy(seed)
    assert run.epochs[-1] < LIMIT
    assert [answer.generated for answer in run.answers] == [toy.answer_ids()] * 2
    assert [answer.finish_reason for answer in run.answers] == ["end"] * 2
    assert failures([*check_first_steps(run), *check_attention(run)]) == []


def test_adams_first_step_has_the_size_of_the_learning_rate(lessons):
    first = lessons["toy"].run.steps[0]
    assert abs(first.after - first.before) == pytest.approx(LEARNING_RATE, rel=1e-5)


def test_another_optimizer_fails(monkeypatch, failures):
    def no_correction(model, config):
        return torch.optim.RMSprop(model.parameters(), lr=config.learning_rate)

    def uncorrected(recorded, mean, square, step, after):
        return toy.AdamStep(recorded["gradient"], mean, square, mean, square, recorded["before"], after)

    monkeypatch.setattr(toy, "adam_step", uncorrected)
    assert failures(check_first_steps(toy.run_toy(1))) == ["steps of Adam by hand and by the optimizer"]


def test_a_wrong_gradient_fails(lessons, failures):
    run = lessons["toy"].run
    wrong = toy.ToyRun(run.decoder, run.gradient * 1.001, run.finite_differences, run.losses, run.steps, run.answers)
    assert failures(check_first_steps(wrong)) == ["gradient and finite differences"]


def test_too_few_epochs_fail(monkeypatch, failures):
    monkeypatch.setattr(toy, "EPOCHS", 4)
    assert "loss at the end" in failures(check_outcome(toy.run_toy(1)))


def test_an_untrained_toy_fails(monkeypatch, failures):
    monkeypatch.setattr(toy, "train_on_rows", lambda decoder, *rest: [1.0, 1.0])
    assert len(failures(check_outcome(toy.run_toy(1)))) >= 2


def test_the_mask_left_out_after_training_fails_the_check_if_it_makes_no_difference(lessons, failures, monkeypatch):
    monkeypatch.setattr(toy, "probabilities_without_mask", lambda decoder: [1.0] * 7)
    assert failures(check_attention(lessons["toy"].run)) == ["the least P of a word, without the mask"]


@pytest.mark.parametrize(
    ("text", "prompt"),
    [("How is living in Amsterdam?", toy.PROMPTS[0]), ("living in amsterdam is how <EOS>", toy.PROMPTS[1])],
)
def test_a_question_is_answered_live(lessons, text, prompt):
    asked, answer = toy.ask(lessons["toy"].run.decoder, text)
    assert (asked, answer.generated) == (prompt, toy.answer_ids())


@pytest.mark.parametrize(("text", "error"), [("how is paris", TokenizerError), ("how " * 20, ContextLengthError)])
def test_a_question_that_the_toy_cannot_read_is_refused(lessons, text, error):
    with pytest.raises(error):
        toy.ask(lessons["toy"].run.decoder, text)


def test_another_seed_gives_other_losses(lessons):
    other = ToyLesson(seed=2)
    assert other.run.losses[0] != lessons["toy"].run.losses[0]
    assert "seed 2" in " ".join(str(other).split())

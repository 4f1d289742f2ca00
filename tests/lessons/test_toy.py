"""The toy learns to answer from every start, and a trainer that is wrong is noticed."""

from __future__ import annotations

import pytest
import torch

from foretell.lessons.toy import run as toy
from foretell.lessons.toy.lesson import Toy, check_first_steps, check_outcome
from foretell.lessons.toy.printed import LEARNING_RATE, LIMIT


@pytest.mark.parametrize("seed", range(20))
def test_every_seed_ends_below_the_limit_and_answers_both_prompts(seed, failures):
    run = toy.run_toy(seed)
    assert run.epochs[-1] < LIMIT
    assert [answer.generated for answer in run.answers] == [toy.answer_ids()] * 2
    assert [answer.finish_reason for answer in run.answers] == ["end"] * 2
    assert failures(check_first_steps(run)) == []


def test_the_first_step_of_adam_is_the_learning_rate(lessons):
    first = lessons["toy"].run.steps[0]
    assert abs(first.after - first.before) == pytest.approx(LEARNING_RATE, rel=1e-5)


def test_an_optimizer_that_is_not_adam_is_noticed(monkeypatch, failures):
    def no_correction(model, config):
        return torch.optim.RMSprop(model.parameters(), lr=config.learning_rate)

    def record(seen, mean, square, number, after):
        return toy.AdamStep(seen["gradient"], mean, square, mean, square, seen["before"], after)

    monkeypatch.setattr(toy, "adam_step", record)  # the moments without their correction
    assert failures(check_first_steps(toy.run_toy(1))) == ["steps of Adam by hand and by the optimizer"]


def test_a_gradient_that_is_off_is_noticed(lessons, failures):
    run = lessons["toy"].run
    wrong = toy.Run(run.decoder, run.gradient * 1.001, run.slopes, run.losses, run.steps, run.answers)
    assert failures(check_first_steps(wrong)) == ["gradient and finite differences"]


def test_training_that_is_too_short_is_noticed(monkeypatch, failures):
    monkeypatch.setattr(toy.printed, "EPOCHS", 4)
    assert "loss at the end" in failures(check_outcome(toy.run_toy(1)))


def test_an_untrained_toy_does_not_answer(monkeypatch, failures):
    monkeypatch.setattr(toy, "practise", lambda decoder, *rest: [1.0, 1.0])
    assert len(failures(check_outcome(toy.run_toy(1)))) >= 2


def test_another_seed_is_another_run(lessons):
    other = Toy(seed=2)
    assert other.run.losses[0] != lessons["toy"].run.losses[0]
    assert "seed 2" in " ".join(str(other).split())

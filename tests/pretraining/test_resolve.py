"""What is chosen when a user leaves it open."""

from __future__ import annotations

import pytest

from foretell.pretraining.recipe import choose_dropout
from foretell.pretraining.resolve import MOST_EPOCHS, choose_size, choose_steps
from foretell.pretraining.tokens import vocabulary_for


def test_more_time_means_a_larger_model():
    names = [choose_size(10**9, 2048, minutes, 1e11)[0] for minutes in (0.1, 10, 1000, 100_000)]
    assert names == ["toy", "tiny", "small", "base"]


def test_little_text_means_a_small_model_however_long_it_may_train():
    name, reason = choose_size(20_000, 512, 10_000, 1e12)
    assert name == "toy"
    assert "the text" in reason


def test_steps_fill_the_minutes_that_were_asked_for():
    steps, reason = choose_steps(100_000, 2048, 2.0, 20_480, fixed_time=True)
    assert steps == 1200
    assert "2 minutes" in reason


def test_without_minutes_the_text_is_not_read_too_often():
    steps, reason = choose_steps(100_000, 1000, 600.0, 50_000, fixed_time=False)
    assert steps == MOST_EPOCHS * 100
    assert "memorise" in reason


def test_the_more_often_a_text_is_read_the_more_is_dropped():
    rates = [choose_dropout(epochs)["residual"] for epochs in (0.5, 5, 50)]
    assert rates == sorted(rates)
    assert rates[0] == 0
    assert all(choose_dropout(epochs)["attention"] == 0 for epochs in (0.5, 5, 50))


@pytest.mark.parametrize(("size", "entries"), [(1_000, 512), (373_164, 512), (1_003_856, 2048), (10**9, 16_384)])
def test_the_vocabulary_grows_with_the_text(size, entries):
    assert vocabulary_for(size) == entries

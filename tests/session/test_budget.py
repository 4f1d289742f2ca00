"""The size that a given time and given data can teach."""

from __future__ import annotations

import logging

import pytest

from foretell.session.budget import FEWEST_STEPS, Budget, SizeCost, choose_size

SIZES = {name: SizeCost(10**power, 1000, 6 * 10**power) for power, name in enumerate(("toy", "tiny", "small"), 4)}


def budget(minutes: float, most_tokens: float = 1e12, tokens_per_parameter: float = 20) -> Budget:
    return Budget(minutes, 1e9, most_tokens, tokens_per_parameter=tokens_per_parameter)


def taught(reason: str) -> int:
    """How many parameters can be taught, from a reason."""
    return int(reason.rpartition(" ")[2].replace(",", ""))


def test_more_time_means_a_larger_size():
    names = [choose_size(SIZES, budget(minutes))[0] for minutes in (0.3, 20, 2000)]
    assert names == list(SIZES)


def test_little_data_mean_a_small_size_for_any_time():
    name, reason = choose_size(SIZES, budget(10_000, 20 * 20_000))
    assert name == "toy"
    assert "the text can teach about 20,000" in reason


def test_the_best_size_is_given_twenty_tokens_for_each_parameter():
    minutes = 20 * 1e5 * 6e5 / 1e9 / 60
    assert choose_size(SIZES, budget(minutes)) == (
        "tiny",
        "size        tiny, 100,000 parameters: the time can teach about 100,000",
    )


def test_operations_of_the_optimizer_leave_less_for_the_model():
    busy = {name: cost._replace(flops_per_token=4 * cost.flops_per_token) for name, cost in SIZES.items()}
    reasons = [choose_size(costs, budget(20))[1] for costs in (SIZES, busy)]
    assert taught(reasons[0]) == pytest.approx(2 * taught(reasons[1]), rel=0.01)


def test_a_smaller_size_is_better_than_few_steps():
    minutes = FEWEST_STEPS * 1000 * 6e5 / 1e9 / 60  # exactly enough for tiny
    names = [choose_size(SIZES, budget(factor * minutes, tokens_per_parameter=0.1))[0] for factor in (1.01, 0.99)]
    assert names == ["tiny", "toy"]


def test_too_little_time_for_any_size_is_a_warning_with_the_time_needed(caplog):
    minutes = FEWEST_STEPS * 1000 * 6e4 / 1e9 / 60  # 0.2 minutes
    with caplog.at_level(logging.WARNING, logger="foretell"):
        assert choose_size(SIZES, budget(minutes / 10))[0] == "toy"
    assert "0.02 minutes are too short: about 20 steps of the smallest size, toy" in caplog.text
    assert "needs 200: --minutes 0.2" in caplog.text

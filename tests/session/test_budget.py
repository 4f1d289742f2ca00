"""The size with the lowest expected loss for a given time and given data."""

from __future__ import annotations

import logging
import math

import pytest

from foretell.session.budget import (
    FEWEST_STEPS,
    PAIRS,
    SERIES,
    TEXT,
    Budget,
    LossCurve,
    SizeCost,
    best_size,
    choose_size,
    effective_tokens,
    estimate_steps,
    measured_costs,
)

SIZES = {name: SizeCost(10**power, 1000, 6 * 10**power) for power, name in enumerate(("toy", "tiny", "small"), 4)}
CURVE = LossCurve(1.0, 40.0, 0.5, 180.0, 0.5)  # size and tokens matter equally at 20 tokens per parameter
ENOUGH = 1e12  # different tokens


def budget(minutes: float, unique_tokens: float = ENOUGH, curve: LossCurve = CURVE) -> Budget:
    return Budget(minutes, 1e9, unique_tokens, curve)


def minutes_for(tokens: float, size: str) -> float:
    return tokens * SIZES[size].flops_per_token / 1e9 / 60


def test_more_time_means_a_larger_size():
    names = [choose_size(SIZES, budget(minutes))[0] for minutes in (0.3, 20, 2000)]
    assert names == list(SIZES)


def test_little_data_mean_a_small_size_for_any_time():
    assert choose_size(SIZES, budget(10_000, unique_tokens=1_000))[0] == "toy"
    assert choose_size(SIZES, budget(10_000))[0] == "small"


def test_the_reason_has_the_tokens_and_the_losses_of_the_other_sizes():
    name, reason = choose_size(SIZES, budget(minutes_for(20e5, "tiny"), unique_tokens=4e5))
    assert name == "tiny"
    assert reason.startswith(
        "size        tiny, 100,000 parameters, about 2,000,000 tokens in 20 minutes, 5.0 times the data: the lowest "
        "expected loss (toy +"
    )


def test_a_size_without_a_competitor_has_its_reason():
    minutes = minutes_for(FEWEST_STEPS * 1000, "toy")
    assert choose_size(SIZES, budget(1.1 * minutes))[1].endswith("larger ones need more time or data")


def test_operations_of_the_optimizer_leave_fewer_tokens():
    busy = SIZES["tiny"]._replace(flops_per_token=4 * SIZES["tiny"].flops_per_token)
    assert budget(20).tokens(SIZES["tiny"]) == 4 * budget(20).tokens(busy)


def test_of_sizes_that_are_about_as_good_the_smallest_is_chosen():
    flat = CURVE._replace(size_factor=1e-3)  # parameters hardly matter
    assert choose_size(SIZES, budget(20_000, curve=flat))[0] == "toy"


def test_repeated_tokens_count_less_than_new_ones():
    assert effective_tokens(1e6, unique=2e6) == 1e6
    assert 1.9e6 < effective_tokens(2e6, unique=1e6) < 2e6
    assert effective_tokens(1e12, unique=1e6) == pytest.approx(16.4e6)


def test_a_size_with_too_many_parameters_for_the_data_is_left_out():
    flat = CURVE._replace(size_factor=4e3)  # larger is better
    names = [choose_size(SIZES, budget(20_000, unique, flat))[0] for unique in (1e6 / 5, 1e6 / 5 - 1)]
    assert names == ["small", "tiny"]


def test_a_smaller_size_is_better_than_few_steps():
    minutes = minutes_for(FEWEST_STEPS * 1000, "tiny")  # exactly enough for tiny
    wide = CURVE._replace(size_factor=4e3)
    names = [choose_size(SIZES, budget(factor * minutes, curve=wide))[0] for factor in (1.01, 0.99)]
    assert names == ["tiny", "toy"]


@pytest.mark.parametrize(("gain", "size"), [(1.0, "tiny"), (3.0, "small")])
def test_a_larger_size_that_may_be_better_is_measured_too(gain, size):
    """`small` makes `gain` times the operations of `tiny` per second."""
    asked = []

    def seconds(name):
        asked.append(name)
        return SIZES[name].tokens_per_step * SIZES[name].flops_per_token / (1e9 * (gain if name == "small" else 1))

    minutes = minutes_for(20e5, "small")  # where tiny is better by a little
    costs, left = measured_costs(SIZES, "tiny", seconds, lambda rate: Budget(minutes, rate, ENOUGH, CURVE))
    assert asked == ["tiny", "small"]
    assert best_size(costs, left) == size
    assert left.tokens(costs["small"]) == pytest.approx(gain * 20e5)
    assert costs["tiny"] == SIZES["tiny"]


def test_a_size_that_cannot_be_better_is_not_measured():
    seconds = {"tiny": SIZES["tiny"].tokens_per_step * SIZES["tiny"].flops_per_token / 1e9}
    minutes = minutes_for(300 * 1000, "tiny")
    costs, left = measured_costs(SIZES, "tiny", seconds.__getitem__, lambda rate: Budget(minutes, rate, ENOUGH, CURVE))
    assert (costs, best_size(costs, left)) == (SIZES, "tiny")


@pytest.mark.parametrize(("factor", "size"), [(1.0, "toy"), (20.0, "tiny")])
def test_a_smaller_size_is_chosen_only_if_its_measured_steps_are_fast(factor, size):
    """`toy` takes `factor` times as long as its operations do at the rate of `tiny`."""
    curve, minutes = CURVE._replace(size_factor=20.0), minutes_for(400 * 1000, "tiny")
    costs = {name: SIZES[name] for name in ("toy", "tiny")}
    assert best_size(costs, budget(minutes, curve=curve)) == "toy"

    def seconds(name):
        return costs[name].tokens_per_step * costs[name].flops_per_token / 1e9 * (factor if name == "toy" else 1)

    known, left = measured_costs(costs, "tiny", seconds, lambda rate: Budget(minutes, rate, ENOUGH, curve))
    assert best_size(known, left) == size


def test_a_size_that_does_not_fit_the_machine_is_not_chosen():
    seconds = {"tiny": 1.0, "small": math.inf}
    costs, left = measured_costs(SIZES, "tiny", seconds.__getitem__, lambda rate: Budget(1e9, rate, ENOUGH, CURVE))
    assert best_size(costs, left) == "tiny"


def test_too_little_time_for_any_size_is_a_warning_with_the_time_needed(caplog):
    minutes = FEWEST_STEPS * 1000 * 6e4 / 1e9 / 60  # 0.2 minutes
    with caplog.at_level(logging.WARNING, logger="foretell"):
        assert choose_size(SIZES, budget(minutes / 10))[0] == "toy"
        assert estimate_steps(0.02, 0.06, "full speed", fewest=200) == (
            60,
            "0.02 minutes at full speed, as an estimate: the time decides",
        )
    assert "too short: about 20 steps in 0.02 minutes; a useful model needs 200, 0.2 minutes" in caplog.text
    assert "goes on to 200 steps, for at most 0.06 minutes" in caplog.text


@pytest.mark.parametrize("curve", [TEXT, SERIES, PAIRS], ids=["text", "series", "pairs"])
def test_the_fitted_curves_fall_with_parameters_and_tokens(curve):
    assert curve.loss(1e6, 1e6) > curve.loss(2e6, 1e6) > curve.loss(2e6, 2e6) > curve.floor >= 0

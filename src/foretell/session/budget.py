"""The model size with the lowest expected loss after a given time, and the number of steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from foretell.config.training import TrainingConfig
from foretell.training.optimizer import Shapes, optimizer_flops_per_step
from foretell.training.pace import OVERTIME

logger = logging.getLogger(__name__)
TOKENS_PER_PARAMETER = 20  # for `plan`; Hoffmann et al. 2022, table 3
FEWEST_STEPS = 200  # a smaller size is better than fewer steps: docs/forecasting-reference.md
MOST_PARAMETERS_PER_TOKEN = 5  # per unique token: 4.8 million parameters learned from a million, docs/speedrun.md
WORTH_OF_REPEATS = 15.4  # limit of the value of repeats, in unique tokens (Muennighoff et al. 2023, section 6)
MOST_GAIN = 4  # a larger size reaches at most this multiple of the measured size's operations per second
MEMORISED = "more would mostly memorise the data"
CLOSE = 0.01  # relative difference in loss below which the smaller size, which is cheaper to use, is preferred


def effective_tokens(tokens: float, unique: float) -> float:
    """The number of new tokens worth as much as `tokens` tokens of data with `unique` unique ones.

    Muennighoff et al. 2023, "Scaling Data-Constrained Language Models", equation 5.
    """
    repeats = max(0.0, tokens / unique - 1)
    return min(tokens, unique) + unique * WORTH_OF_REPEATS * (1 - math.exp(-repeats / WORTH_OF_REPEATS))


class LossCurve(NamedTuple):
    """The loss of N parameters after D tokens: E + A / N^a + B / D^b (Hoffmann et al. 2022, equation 2)."""

    floor: float
    size_factor: float
    size_exponent: float
    token_factor: float
    token_exponent: float

    def loss(self, parameters: float, tokens: float) -> float:
        by_size = self.size_factor / parameters**self.size_exponent
        return self.floor + by_size + self.token_factor / tokens**self.token_exponent


# Fitted to trainings with the defaults: docs/session.md
TEXT = LossCurve(3.826, 164.2, 0.494, 26_412, 0.842)
SERIES = LossCurve(3.734, 154.5, 0.494, 20_321, 0.842)
PAIRS = LossCurve(0.777, 477, 0.494, 84_200, 0.842)


class SizeCost(NamedTuple):
    """The cost of a size: parameters, tokens per step, and training FLOPs per token, including the optimizer."""

    parameters: int
    tokens_per_step: float
    flops_per_token: float

    def measured(self, seconds_per_step: float, flops_per_second: float) -> SizeCost:
        """The cost with FLOPs per token set to the measured time times the rate."""
        return self._replace(flops_per_token=seconds_per_step * flops_per_second / self.tokens_per_step)

    @classmethod
    def of(cls, shapes: Shapes, training: TrainingConfig, tokens_per_step: float, model_flops: float) -> SizeCost:
        """The cost of weights with the optimizer of `training`; model_flops: per token, without the optimizer."""
        optimizer = optimizer_flops_per_step(shapes, training) / tokens_per_step
        return cls(sum(map(math.prod, shapes.values())), tokens_per_step, model_flops + optimizer)


@dataclass(frozen=True)
class Budget:
    """The time for steps, the machine's speed, the unique tokens of the data, and the loss curve for such data."""

    minutes: float
    flops_per_second: float
    unique_tokens: float
    curve: LossCurve

    def tokens(self, cost: SizeCost) -> float:
        return self.minutes * 60 * self.flops_per_second / cost.flops_per_token

    def steps(self, cost: SizeCost) -> float:
        return self.tokens(cost) / cost.tokens_per_step

    def loss(self, cost: SizeCost) -> float:
        """The expected loss of the size when the time is over."""
        return self.curve.loss(cost.parameters, effective_tokens(self.tokens(cost), self.unique_tokens))

    def allows(self, cost: SizeCost) -> bool:
        """True if there is time for enough steps of the size, and enough data for it."""
        return self.steps(cost) >= FEWEST_STEPS and cost.parameters <= MOST_PARAMETERS_PER_TOKEN * self.unique_tokens


def measured_costs(
    costs: Mapping[str, SizeCost], first: str, seconds: Callable[[str], float], budget: Callable[[float], Budget]
) -> tuple[dict[str, SizeCost], Budget]:
    """Measured costs of the size `first` and of sizes that may be better, with the remaining budget.

    A measured step of the first size gives its operations per second. Larger sizes can reach a higher rate, so a larger
    size is measured if it would be best at MOST_GAIN times this rate, and a smaller one if it would be best at the same
    rate. seconds: measures the seconds per step of a size. budget: the remaining budget at a rate in FLOP/s.
    """
    rate = costs[first].tokens_per_step * costs[first].flops_per_token / seconds(first)
    known, smaller = dict(costs), list(costs)[: list(costs).index(first)]
    gains = {name: 1 if name in smaller else MOST_GAIN for name in costs} | {first: 1}
    measured = {first}
    while True:
        hopeful = {
            name: cost._replace(flops_per_token=cost.flops_per_token / gains[name]) for name, cost in known.items()
        }
        name = best_size(hopeful, budget(rate))
        if name in measured:
            return known, budget(rate)
        known[name], gains[name] = known[name].measured(seconds(name), rate), 1
        measured.add(name)


def best_size(costs: Mapping[str, SizeCost], budget: Budget) -> str:
    """The smallest size whose expected loss is close to the lowest; the smallest of all if the time is too short."""
    losses = losses_of(costs, budget)
    return next(name for name, loss in losses.items() if loss <= (1 + CLOSE) * min(losses.values()))


def losses_of(costs: Mapping[str, SizeCost], budget: Budget) -> dict[str, float]:
    """The expected loss of the smallest size and of each size that time and data allow."""
    smallest = next(iter(costs))
    return {name: budget.loss(cost) for name, cost in costs.items() if name == smallest or budget.allows(cost)}


def choose_size(costs: Mapping[str, SizeCost], budget: Budget) -> tuple[str, str]:
    """The best size that time and data allow, and the reason.

    `costs` has the smallest size first, which is chosen if the time is too short for all.
    """
    name, losses = best_size(costs, budget), losses_of(costs, budget)
    cost, tokens = costs[name], budget.tokens(costs[name])
    passes = f", {tokens / budget.unique_tokens:,.1f} times the data" if tokens > budget.unique_tokens else ""
    others = [f"{other} {loss / losses[name] - 1:+.1%}" for other, loss in losses.items() if other != name]
    compared = f": the lowest expected loss ({', '.join(others)})" if others else ": larger ones need more time or data"
    return name, (
        f"size        {name}, {cost.parameters:,} parameters, about {tokens:,.0f} tokens in "
        f"{in_minutes(budget.minutes)}{passes}{compared}"
    )


def in_minutes(minutes: float) -> str:
    return f"{minutes:g} minute{'' if minutes == 1 else 's'}"


def round_up(minutes: float) -> str:
    """Minutes, rounded up to two significant digits."""
    unit = 10 ** (math.floor(math.log10(minutes)) - 1)
    return f"{math.ceil(minutes / unit) * unit:.10g}"


def choose_steps(
    minutes: float, seconds: float, speed: str, most: int | None = None, fewest: int = 1, why_most: str = MEMORISED
) -> tuple[int, str]:
    """The number of steps of `seconds` each that fit the time, within limits, and the reason.

    speed: a description of the measured speed. why_most: the reason for the limit `most`.
    """
    steps, why = int(60 * minutes / seconds), f"{in_minutes(minutes)} at {speed}"
    if most is not None and most < steps:
        steps, why = most, why_most
    if steps <= fewest:
        why += f", but no fewer than {fewest}"
    return max(fewest, steps), why


def estimate_steps(
    minutes: float, seconds: float, speed: str, most: int | None = None, fewest: int = 0
) -> tuple[int, str]:
    """The estimated number of steps of `seconds` each in a time budget (`TimeBudget`), and the reason.

    A budget that is too short for `fewest` steps is a warning, with the minutes that they need.
    """
    by_time = 60 * minutes / seconds
    if most is not None and most < by_time:
        return most, f"the time would allow {by_time:,.0f}, but {MEMORISED}"
    if by_time < (fewest := fewest if most is None else min(fewest, most)):
        logger.warning(
            f"time        too short: about {by_time:,.0f} steps in {in_minutes(minutes)}; a useful model needs "
            f"{fewest}, {round_up(minutes * fewest / by_time)} minutes. It goes on to {fewest} steps, for at most "
            f"{in_minutes(OVERTIME * minutes)}; Ctrl-C keeps the best checkpoint"
        )
        by_time = min(fewest, OVERTIME * by_time)
    return max(1, int(by_time)), f"{in_minutes(minutes)} at {speed}, as an estimate: the time decides"

"""The size of a model with the lowest expected loss after a given time, and the number of steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from foretell.config import TrainingConfig
from foretell.training.optimizer import Shapes, optimizer_flops_per_step

logger = logging.getLogger(__name__)
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022, table 3; of `plan`
FEWEST_STEPS = 200  # a smaller size is better than fewer steps: docs/forecasting.md
MOST_PARAMETERS_PER_TOKEN = 5  # of different tokens: 4.8 million parameters learned from a million, docs/speedrun.md
WORTH_OF_REPEATS = 15.4  # times the different tokens, at most (Muennighoff et al. 2023, section 6)
MOST_GAIN = 4  # a larger size makes at most this number of times the operations per second of the one measured
CLOSE = 0.01  # of the loss: of sizes that are about as good, the smallest is cheaper to use


def effective_tokens(tokens: float, unique: float) -> float:
    """The number of new tokens that teach as much as `tokens` of data with `unique` different ones.

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
PAIRS = LossCurve(0.573, 660, 0.494, 142_500, 0.842)


class SizeCost(NamedTuple):
    """A size: its parameters, the tokens of a step, and the operations of training per token, optimizer included."""

    parameters: int
    tokens_per_step: float
    flops_per_token: float

    def measured(self, seconds_per_step: float, flops_per_second: float) -> SizeCost:
        """The cost as the operations that another size would make in the time of these steps."""
        return self._replace(flops_per_token=seconds_per_step * flops_per_second / self.tokens_per_step)

    @classmethod
    def of(cls, shapes: Shapes, training: TrainingConfig, tokens_per_step: float, model_flops: float) -> SizeCost:
        """The cost of weights with the optimizer of `training`; model_flops: of the model alone, per token."""
        optimizer = optimizer_flops_per_step(shapes, training) / tokens_per_step
        return cls(sum(map(math.prod, shapes.values())), tokens_per_step, model_flops + optimizer)


@dataclass(frozen=True)
class Budget:
    """The time for steps, the speed of the machine, the different tokens of the data, and the curve of such data."""

    minutes: float
    flops_per_second: float
    unique_tokens: float
    curve: LossCurve

    def tokens(self, cost: SizeCost) -> float:
        return self.minutes * 60 * self.flops_per_second / cost.flops_per_token

    def steps(self, cost: SizeCost) -> float:
        return self.tokens(cost) / cost.tokens_per_step

    def loss(self, cost: SizeCost) -> float:
        """The expected loss of the size at the end of the time."""
        return self.curve.loss(cost.parameters, effective_tokens(self.tokens(cost), self.unique_tokens))

    def allows(self, cost: SizeCost) -> bool:
        """True if the size takes enough steps, and the data is enough for it."""
        return self.steps(cost) >= FEWEST_STEPS and cost.parameters <= MOST_PARAMETERS_PER_TOKEN * self.unique_tokens


def measured_costs(
    costs: Mapping[str, SizeCost], first: str, seconds: Callable[[str], float], budget: Callable[[float], Budget]
) -> tuple[dict[str, SizeCost], Budget]:
    """Costs from measured steps of the size `first`, and of others that may be better; with the budget left.

    The operations of a step give the rate of the first size, which larger ones exceed; so one that would be the best if
    it made MOST_GAIN times the operations per second is measured too, and so is a smaller one that would be the best at
    the same rate. seconds: of a step of a size. budget: what is left at a rate in FLOP/s.
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
    """The smallest of the sizes with the lowest expected loss; the smallest of all where the time is too short."""
    losses = losses_of(costs, budget)
    return next(name for name, loss in losses.items() if loss <= (1 + CLOSE) * min(losses.values()))


def losses_of(costs: Mapping[str, SizeCost], budget: Budget) -> dict[str, float]:
    """The expected loss of the smallest size, and of each that time and data allow."""
    smallest = next(iter(costs))
    return {name: budget.loss(cost) for name, cost in costs.items() if name == smallest or budget.allows(cost)}


def choose_size(costs: Mapping[str, SizeCost], budget: Budget) -> tuple[str, str]:
    """The size with the lowest expected loss, of those that time and data allow; with the reason.

    `costs` has the smallest size first. If the time is too short even for that one, it is chosen with a warning.
    """
    smallest = next(iter(costs))
    if (steps := budget.steps(costs[smallest])) < FEWEST_STEPS:
        logger.warning(
            f"time        too short: about {steps:,.0f} steps of the smallest size, {smallest}, in "
            f"{in_minutes(budget.minutes)}; a useful model needs {FEWEST_STEPS}, so "
            f"{round_up(budget.minutes * (FEWEST_STEPS / steps - 1))} minutes more"
        )
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
    minutes: float | None, left: float, seconds: float, speed: str, most: int | None = None, fewest: int = 1
) -> tuple[int, str]:
    """The number of steps of `seconds` each that fit the time, and the reason; with `minutes`, an estimate.

    left: the minutes for steps. most: more would mostly memorise the data. fewest: without `minutes`. speed: the
    measured speed in words.
    """
    steps = by_time = int(60 * left / seconds)
    why = f"{in_minutes(left)} at {speed}"
    if most is not None and most < by_time:
        steps, why = most, "more would mostly memorise the data"
        why = why if minutes is None else f"the time would allow {by_time:,}, but {why}"
    elif minutes is not None:
        why = f"{left:g} of {in_minutes(minutes)} at {speed}, as an estimate: the time decides"
    least = 1 if minutes is not None else fewest
    if steps <= least:
        why += f", but no fewer than {least}"
    return max(least, steps), why

"""The size of a model and the number of steps for a given time: what the time and the data can teach."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from foretell.config import TrainingConfig
from foretell.training.optimizer import Shapes, optimizer_flops_per_step

logger = logging.getLogger(__name__)
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022, table 3; of `plan`
FEWEST_STEPS = 200  # a smaller size is better than fewer steps: docs/forecasting.md
# How many times the first amount repeated tokens, and parameters beyond the best number for the tokens, are worth at
# most, less 1 (Muennighoff et al. 2023, "Scaling Data-Constrained Language Models", section 6)
WORTH_OF_REPEATS, WORTH_OF_EXCESS = 15.4, 5.3
CLOSE = 0.01  # of the loss: of sizes that are about as good, the smallest is cheaper to use


def saturating(amount: float, first: float, worth: float) -> float:
    """`amount`, where more than `first` counts less and less: at most 1 + `worth` times `first`."""
    repeats = max(0.0, amount / first - 1)
    return min(amount, first) + first * worth * (1 - math.exp(-repeats / worth))


class LossCurve(NamedTuple):
    """The loss of N parameters after D tokens: E + A / N^a + B / D^b (Hoffmann et al. 2022, equation 2)."""

    floor: float
    size_factor: float
    size_exponent: float
    token_factor: float
    token_exponent: float

    def loss(self, parameters: float, tokens: float, unique: float = math.inf) -> float:
        """The expected loss after `tokens` of data that has `unique` different ones."""
        if math.isfinite(unique):
            tokens = saturating(tokens, unique, WORTH_OF_REPEATS)
            parameters = saturating(parameters, self.best_parameters(unique), WORTH_OF_EXCESS)
        by_size = self.size_factor / parameters**self.size_exponent
        return self.floor + by_size + self.token_factor / tokens**self.token_exponent

    def best_parameters(self, tokens: float) -> float:
        """The size for which more parameters and more tokens lower the loss equally, for the same operations."""
        slope = self.token_exponent * self.token_factor / tokens**self.token_exponent
        return (self.size_exponent * self.size_factor / slope) ** (1 / self.size_exponent)


# Fitted to trainings with the defaults by bench/curves.py: docs/session.md
TEXT = LossCurve(1.0, 100.0, 0.4, 400.0, 0.4)
SERIES = TEXT
PAIRS = TEXT


class SizeCost(NamedTuple):
    """A size: its parameters, the tokens of a step, and the operations of training per token, optimizer included."""

    parameters: int
    tokens_per_step: float
    flops_per_token: float

    @classmethod
    def of(cls, shapes: Shapes, training: TrainingConfig, tokens_per_step: float, model_flops: float) -> SizeCost:
        """The cost of weights with the optimizer of `training`; model_flops: of the model alone, per token."""
        optimizer = optimizer_flops_per_step(shapes, training) / tokens_per_step
        return cls(sum(map(math.prod, shapes.values())), tokens_per_step, model_flops + optimizer)

    @property
    def flops_per_step(self) -> float:
        return self.tokens_per_step * self.flops_per_token


@dataclass(frozen=True)
class Budget:
    """The time, the speed of the machine, and the different tokens of the data, with the curve of such data."""

    minutes: float
    flops_per_second: float
    unique_tokens: float
    curve: LossCurve

    def tokens(self, cost: SizeCost) -> float:
        """The tokens that the time allows."""
        return self.minutes * 60 * self.flops_per_second / cost.flops_per_token

    def steps(self, cost: SizeCost) -> float:
        return self.tokens(cost) / cost.tokens_per_step

    def loss(self, cost: SizeCost) -> float:
        """The expected loss of the size at the end of the time."""
        return self.curve.loss(cost.parameters, self.tokens(cost), self.unique_tokens)


def choose_size(costs: Mapping[str, SizeCost], budget: Budget) -> tuple[str, str]:
    """The size with the lowest expected loss, of those with enough steps; with the reason.

    `costs` has the smallest size first. If the time is too short even for that one, it is chosen with a warning.
    """
    smallest = next(iter(costs))
    losses = {name: budget.loss(cost) for name, cost in costs.items() if budget.steps(cost) >= FEWEST_STEPS}
    if not losses:
        steps = budget.steps(costs[smallest])
        logger.warning(
            f"time        {budget.minutes:g} minutes are too short: about {steps:,.0f} steps of the smallest size, "
            f"{smallest}; a useful model needs {FEWEST_STEPS}: --minutes "
            f"{round_up(budget.minutes * FEWEST_STEPS / steps)}"
        )
        losses = {smallest: budget.loss(costs[smallest])}
    best = min(losses.values())
    name = next(name for name, loss in losses.items() if loss <= (1 + CLOSE) * best)
    cost, tokens = costs[name], budget.tokens(costs[name])
    passes = f", {tokens / budget.unique_tokens:.2g} times the data" if tokens > budget.unique_tokens else ""
    others = [f"{other} {loss / losses[name] - 1:+.1%}" for other, loss in losses.items() if other != name]
    compared = f": the lowest expected loss ({', '.join(others)})" if others else ": larger ones have too few steps"
    return name, (
        f"size        {name}, {cost.parameters:,} parameters, about {tokens:,.0f} tokens in {budget.minutes:g} minutes"
        f"{passes}{compared}"
    )


def round_up(minutes: float) -> str:
    """Minutes with two digits, not fewer."""
    unit = 10 ** (math.floor(math.log10(minutes)) - 1)
    return f"{math.ceil(minutes / unit) * unit:.10g}"


def choose_steps(
    minutes: float | None, default_minutes: float, seconds: float, speed: str, most: int | None = None, fewest: int = 1
) -> tuple[int, str]:
    """The steps of `seconds` each that fit the time, and the reason; of `minutes` it is an estimate.

    Without `minutes`, the default applies, with at least `fewest` steps and at most `most`, after which a model would
    mostly memorise its data. speed: the measured speed in words.
    """
    by_time = int(60 * (minutes or default_minutes) / seconds)
    why = f"{minutes or default_minutes:g} minutes at {speed}"
    steps = by_time
    if minutes is not None:
        why += ", as an estimate: the time decides"
    if minutes is None and most is not None and most < by_time:
        steps, why = most, "more would mostly memorise the data"
    least = 1 if minutes is not None else fewest
    if steps <= least:
        why += f", but no fewer than {least}"
    return max(least, steps), why

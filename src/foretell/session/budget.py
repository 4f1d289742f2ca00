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
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022, table 3
FEWEST_STEPS = 200  # a smaller size is better than fewer steps: docs/forecasting.md


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
    """The time, the speed of the machine, and the tokens of the data, repeated as often as they still teach.

    tokens_per_parameter: how many a parameter needs.
    """

    minutes: float
    flops_per_second: float
    most_tokens: float
    source: str = "the text"
    tokens_per_parameter: float = TOKENS_PER_PARAMETER

    def tokens(self, cost: SizeCost) -> float:
        """The tokens that the time allows."""
        return self.minutes * 60 * self.flops_per_second / cost.flops_per_token

    def steps(self, cost: SizeCost) -> float:
        return self.tokens(cost) / cost.tokens_per_step

    def taught(self, cost: SizeCost) -> tuple[float, str]:
        """The parameters of the size for which time and data are right, judged by this one's speed; and the limit.

        The operations are the product of parameters N and tokens, which is 20 N tokens for the best N.
        """
        by_time = math.sqrt(self.tokens(cost) * cost.parameters / self.tokens_per_parameter)
        by_data = self.most_tokens / self.tokens_per_parameter
        return (by_time, "the time") if by_time < by_data else (by_data, self.source)


def choose_size(costs: Mapping[str, SizeCost], budget: Budget) -> tuple[str, str]:
    """The size nearest to what time and data can teach, of those with enough steps; with the reason.

    `costs` has the smallest size first. If the time is too short even for that one, it is chosen with a warning.
    """
    smallest = next(iter(costs))
    enough = {name: cost for name, cost in costs.items() if budget.steps(cost) >= FEWEST_STEPS}
    if not enough:
        steps = budget.steps(costs[smallest])
        logger.warning(
            f"time        {budget.minutes:g} minutes are too short: about {steps:,.0f} steps of the smallest size, "
            f"{smallest}; a useful model needs {FEWEST_STEPS}: --minutes "
            f"{round_up(budget.minutes * FEWEST_STEPS / steps)}"
        )
    names = enough or [smallest]
    name = min(names, key=lambda size: abs(math.log(costs[size].parameters / budget.taught(costs[size])[0])))
    taught, limit = budget.taught(costs[name])
    return name, f"size        {name}, {costs[name].parameters:,} parameters: {limit} can teach about {taught:,.0f}"


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

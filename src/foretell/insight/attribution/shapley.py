"""Shapley values: additive effects of the parts of an input.

A value function gives a number for each subset of the players, such as a logit for the words left in a text. The
Shapley value of a player is the mean, over all orders, of the change when it joins the players before it (Shapley
1953, "A Value for n-Person Games"). The values add up to the number for all players minus the number for none.

With few players all subsets are evaluated. With more, the mean is taken over random orders (Castro, Gomez and Tejada
2009, "Polynomial calculation of the Shapley value based on sampling"; Strumbelj and Kononenko 2014, "Explaining
prediction models and individual predictions with feature contributions"). Each order is used together with its reverse
(antithetic sampling; Mitchell et al. 2022, "Sampling Permutations for Shapley Value Estimation", section 4.1). The mean
of such a pair is exact for a sum of effects of single players and of two players together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import UsageError
from foretell.randomness import permutation, stream_key

Numbers = NDArray[np.float64]
Masks = NDArray[np.bool_]  # (N, P): True for the players in each of N subsets
ValueFunction = Callable[[Masks], NDArray[np.floating[Any]]]  # (N,)

FEWEST_PAIRS = 2  # a standard error needs two


@dataclass(frozen=True)
class WordEffects:
    """The effects (P,) of words or other players, and their standard errors.

    Method "left out": an effect is full minus the number without the word, and permutations is None. Method "Shapley":
    effects add up to full - empty; if all subsets were evaluated, permutations is 0 and errors are zero.
    """

    values: list[float]
    errors: list[float]
    full: float
    empty: float | None
    passes: int
    permutations: int | None

    @property
    def method(self) -> str:
        return "left out" if self.permutations is None else "Shapley"

    def to_json(self) -> dict[str, Any]:
        """Everything except the effects of single words."""
        summary = {name: value for name, value in asdict(self).items() if name not in ("values", "errors")}
        return {"method": self.method, **summary}


def shapley_values(value: ValueFunction, players: int, budget: int, seed: int = 0, unit: str = "part") -> WordEffects:
    """The Shapley values of the players from at most `budget` evaluations of subsets.

    Exact if the budget allows all 2**players subsets. `value` is called once with all subsets, and can split them to
    save memory. Sampled orders depend only on `seed`. unit: the name of a player in errors. Raises UsageError for a
    budget below `least_budget`.
    """
    if players < 1:
        raise UsageError(f"Shapley values need at least one {unit}")
    if budget < least_budget(players):
        raise UsageError(
            f"Shapley values of {players:,} {unit}s need at least {least_budget(players):,} passes, not {budget:,}"
        )
    if 2**players <= budget:
        return enumerated(value, players)
    return sampled(value, players, (budget - 2) // (2 * (players - 1)), seed)


def least_budget(players: int) -> int:
    """The fewest evaluations that give values with errors: all subsets, or FEWEST_PAIRS orders with their reverses."""
    return min(2**players, 2 + FEWEST_PAIRS * 2 * (players - 1))


def most_players(budget: int, pairs: int = FEWEST_PAIRS) -> int:
    """The largest number of players for a budget, exactly or with `pairs` orders and their reverses."""
    return max(budget.bit_length() - 1, 1 + (budget - 2) // (2 * pairs))


def enumerated(value: ValueFunction, players: int) -> WordEffects:
    """Exact values: the mean change by a player over all sizes, and over all subsets of each size."""
    masks = (np.arange(2**players)[:, None] >> np.arange(players) & 1).astype(bool)  # (2**P, P)
    numbers = np.asarray(value(masks), np.float64)  # (2**P,)
    sizes = masks.sum(1)
    # There are comb(P - 1, s) subsets of s other players; 1 / (P comb(P - 1, s)) is s! (P - s - 1)! / P!
    share = np.array([1 / (players * comb(players - 1, size)) for size in range(players)])
    weights = np.where(masks, share[sizes[:, None] - 1], -share[np.minimum(sizes, players - 1)][:, None])  # (2**P, P)
    values = np.tensordot(weights.T, numbers, 1)  # (P,)
    return WordEffects(values.tolist(), [0.0] * players, float(numbers[-1]), float(numbers[0]), len(masks), 0)


def sampled(value: ValueFunction, players: int, pairs: int, seed: int) -> WordEffects:
    """Values from `pairs` random orders and their reverses; errors are standard errors over the pairs."""
    keys = (stream_key("shapley", seed, pair) for pair in range(pairs))
    forward = np.stack([permutation(key, players).numpy() for key in keys])  # (M, P)
    orders = np.stack([forward, forward[:, ::-1]], axis=1).reshape(-1, players)  # (2M, P)
    ranks = orders.argsort(1)
    prefixes = ranks[:, None, :] < np.arange(1, players)[:, None]  # (2M, P-1, P): the first 1 to P-1 players
    masks = np.concatenate([[[False] * players, [True] * players], prefixes.reshape(-1, players)])
    numbers = np.asarray(value(masks), np.float64)
    empty, full, rest = numbers[0], numbers[1], numbers[2:].reshape(len(orders), players - 1)
    added = np.diff(rest, axis=1, prepend=empty, append=full)  # (2M, P), in the order of each row
    means = np.take_along_axis(added, ranks, 1).reshape(pairs, 2, players).mean(1)  # (M, P), by player
    errors = means.std(0, ddof=1) / np.sqrt(pairs)
    return WordEffects(means.mean(0).tolist(), errors.tolist(), float(full), float(empty), len(masks), 2 * pairs)

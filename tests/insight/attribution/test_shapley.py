"""Shapley values: exact by enumeration, and their estimates from random orders."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest

from foretell.errors import UsageError
from foretell.insight.attribution.shapley import Masks, Numbers, least_budget, most_players, shapley_values

Game = Callable[[Masks], Numbers]


def additive(effects: Numbers, empty: float = 0.5) -> Game:
    """A game in which every player adds the same to any subset."""
    return lambda masks: empty + masks @ effects


def pairwise(players: int, seed: int) -> tuple[Game, Numbers]:
    """A game with effects of single players and of pairs, and its Shapley values: half of each pair's effect."""
    rng = np.random.default_rng(seed)
    single, together = rng.normal(size=players), np.triu(rng.normal(size=(players, players)), 1)
    game = lambda masks: masks @ single + np.einsum("ni,ij,nj->n", masks, together, masks)  # noqa: E731
    return game, single + (together + together.T).sum(1) / 2


def random_game(players: int, seed: int) -> Game:
    """A game whose numbers are unrelated."""
    numbers = np.random.default_rng(seed).normal(size=2**players)
    return lambda masks: numbers[masks @ (1 << np.arange(players))]


def by_definition(game: Game, players: int) -> Numbers:
    """The mean over all orders of what each player adds."""
    values, orders = np.zeros(players), list(permutations(range(players)))
    for order in orders:
        mask = np.zeros((players + 1, players), dtype=bool)
        for size, player in enumerate(order):
            mask[size + 1 :, player] = True
        values[list(order)] += np.diff(game(mask))
    return values / len(orders)


@pytest.mark.parametrize("players", [1, 2, 3, 5])
def test_enumeration_is_the_mean_over_all_orders(players: int) -> None:
    game = random_game(players, seed=1)
    result = shapley_values(game, players, budget=2**players)
    assert result.permutations == 0 and result.passes == 2**players
    assert result.values == pytest.approx(by_definition(game, players))
    assert not any(result.errors)


@pytest.mark.parametrize("budget", [64, 4096])
def test_values_of_an_additive_game_are_its_effects(budget: int) -> None:
    effects = np.array([3.0, -1.0, 0.0, 0.25, 2.0, 1.0, 1.0])
    result = shapley_values(additive(effects), len(effects), budget)
    assert (result.permutations == 0) == (budget == 4096)
    assert result.values == pytest.approx(effects)
    assert result.errors == pytest.approx([0] * len(effects), abs=1e-12)


@pytest.mark.parametrize("players", [8, 30])
def test_an_order_and_its_reverse_are_exact_for_effects_of_pairs(players: int) -> None:
    game, expected = pairwise(players, seed=2)
    result = shapley_values(game, players, least_budget(players))
    assert result.permutations == 4
    assert result.values == pytest.approx(expected)
    assert result.errors == pytest.approx([0] * players, abs=1e-9)


@pytest.mark.parametrize(("players", "budget"), [(4, 16), (9, 500), (60, 500)])
def test_values_add_up_to_the_whole(players: int, budget: int) -> None:
    game = random_game(min(players, 16), seed=3)
    result = shapley_values(lambda masks: game(masks[:, :16]), players, budget)
    assert result.empty is not None and result.passes <= budget
    assert sum(result.values) == pytest.approx(result.full - result.empty)
    assert np.array(result.values[16:]) == pytest.approx(0)  # players without an effect


def test_the_standard_error_is_the_deviation_from_the_exact_values() -> None:
    game = random_game(10, seed=4)
    exact = np.array(shapley_values(game, 10, 1024).values)
    estimates = [shapley_values(game, 10, 902, seed) for seed in range(100)]
    assert estimates[0].permutations == 100
    deviations = np.array([(each.values - exact) / each.errors for each in estimates])
    assert abs(deviations.mean()) < 0.1
    assert deviations.std() == pytest.approx(1, abs=0.1)


def test_a_seed_gives_the_same_values_and_another_seed_others() -> None:
    game = random_game(9, seed=5)
    first, again, other = (shapley_values(game, 9, 200, seed).values for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_budget_that_is_too_small_is_refused_with_the_least() -> None:
    game = additive(np.ones(50))
    with pytest.raises(UsageError, match="50 parts need at least 198 passes, not 197"):
        shapley_values(game, 50, 197)
    assert shapley_values(game, 50, 198).passes == 198
    with pytest.raises(UsageError, match="at least one part"):
        shapley_values(game, 0, 10)


@pytest.mark.parametrize("budget", range(2, 300))
def test_the_most_players_of_a_budget_are_those_whose_least_budget_it_is(budget: int) -> None:
    most = most_players(budget)
    assert least_budget(most) <= budget < least_budget(most + 1)

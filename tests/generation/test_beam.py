"""Beam search against an exhaustive search, over a model that is a table of random logits."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from foretell.generation.batch_generation import result_of
from foretell.generation.beam import CachedSteps, Hypothesis, beam_search, length_penalty

V, END, LIMIT = 4, 3, 4


class TableModel(CachedSteps):
    """Logits that depend on the row and on all tokens read."""

    def __init__(self, rows: list[int]):
        self.origins = rows
        self.read: list[tuple[int, ...]] = [()] * len(rows)

    def start(self) -> Tensor:
        return torch.stack([logits_after(origin, ids) for origin, ids in zip(self.origins, self.read, strict=True)])

    def step(self, rows: list[int], tokens: list[int]) -> Tensor:
        self.origins = [self.origins[row] for row in rows]
        self.read = [(*self.read[row], token) for row, token in zip(rows, tokens, strict=True)]
        return self.start()


def logits_after(origin: int, ids: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(hash((origin, *ids)) % 2**31)
    return 2 * torch.randn(V, generator=generator, dtype=torch.float64)


def search(rows: list[int], beam_size: int, alpha: float = 1.0) -> list[list[Hypothesis]]:
    return result_of(beam_search(TableModel(rows), [LIMIT] * len(rows), END, beam_size, alpha))


def logprob(origin: int, ids: tuple[int, ...]) -> float:
    steps = [logits_after(origin, ids[:place]).log_softmax(-1)[token] for place, token in enumerate(ids)]
    return float(sum(steps))


def every_continuation(origin: int) -> dict[tuple[int, ...], float]:
    """All continuations that end, or have LIMIT tokens, with their log-probabilities."""
    words = range(V - 1)
    ended = [(*ids, END) for length in range(LIMIT) for ids in itertools.product(words, repeat=length)]
    return {ids: logprob(origin, ids) for ids in [*ended, *itertools.product(words, repeat=LIMIT)]}


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("origin", range(5))
def test_a_wide_beam_finds_the_best_continuation(origin, alpha):
    scores = {ids: value / length_penalty(len(ids), alpha) for ids, value in every_continuation(origin).items()}
    best = max(scores, key=lambda ids: scores[ids])
    found = search([origin], V**LIMIT, alpha)[0][0]
    assert found.ids == [token for token in best if token != END]
    assert found.score == pytest.approx(scores[best])
    assert found.finish_reason == ("end" if END in best else "length")


@pytest.mark.parametrize("origin", range(8))
def test_one_beam_is_greedy(origin):
    ids: tuple[int, ...] = ()
    while len(ids) < LIMIT and END not in ids:
        ids = (*ids, int(logits_after(origin, ids).argmax()))
    (found,) = search([origin], 1)[0]
    assert found.ids == [token for token in ids if token != END]
    assert found.logprob == pytest.approx(logprob(origin, ids))


@pytest.mark.parametrize("beam_size", [1, 2, 3])
def test_rows_do_not_depend_on_each_other(beam_size):
    together = search([0, 1, 2, 3], beam_size)
    assert together == [search([row], beam_size)[0] for row in range(4)]


def test_each_row_has_its_own_limit():
    model, limits = TableModel([0, 1, 2]), [1, 2, 4]
    for limit, hypotheses in zip(limits, result_of(beam_search(model, limits, END, 3)), strict=True):
        assert all(len(hypothesis.ids) <= limit for hypothesis in hypotheses)


def test_the_length_penalty_is_that_of_wu_and_others():
    assert length_penalty(7, 0.0) == 1
    assert length_penalty(7, 1.0) == 2
    assert length_penalty(1, 0.6) == 1

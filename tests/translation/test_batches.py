"""Batches of pairs: similar lengths, all pairs once per epoch, a function of (seed, step)."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from foretell.errors import DataError
from foretell.translation.batches import EncodedPair, PairLoader, evaluation_batches, make_pair_batch

TOKENS = 120


@pytest.fixture(scope="module")
def pairs() -> list[EncodedPair]:
    """Pairs with a number of their own as the second id."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 14, size=(300, 2))
    return [
        EncodedPair(np.full(source, n + 1), np.full(target + 1, n + 1)) for n, (source, target) in enumerate(lengths)
    ]


def members(batch) -> list[int]:
    return batch.ids[:, 0].tolist()


def test_an_epoch_has_every_pair_once_in_another_order(pairs):
    loader = PairLoader(pairs, TOKENS, seed=1)
    count = loader.batches_per_epoch
    epochs = [[members(loader.batch(epoch * count + index)) for index in range(count)] for epoch in range(2)]
    for epoch in epochs:
        assert sorted(chain(*epoch)) == list(range(1, 301))
    assert epochs[0] != epochs[1]


def test_a_batch_depends_on_seed_and_step_alone(pairs):
    first, again, other = (PairLoader(pairs, TOKENS, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.batch(30).ids, (again.batch(5), again.batch(30))[1].ids)
    assert [members(first.batch(step)) for step in range(4)] != [members(other.batch(step)) for step in range(4)]


def test_batches_hold_at_most_so_many_tokens_and_little_padding(pairs):
    loader = PairLoader(pairs, TOKENS, seed=1)
    batches = [loader.batch(step) for step in range(loader.batches_per_epoch)]
    sizes = [batch.ids.numel() + batch.source.ids.numel() for batch in batches]
    real = sum(batch.count + sum(batch.source.lengths) for batch in batches)
    assert max(sizes) <= TOKENS
    assert np.mean(sizes) > TOKENS / 2
    assert loader.padding == pytest.approx(1 - real / sum(sizes))
    assert loader.padding < 0.12


def test_a_pair_longer_than_a_batch_is_a_batch_of_its_own():
    long = EncodedPair(np.ones(100, int), np.ones(101, int))
    loader = PairLoader([long, long], batch_tokens=50, seed=1)
    assert [len(loader.batch(step)) for step in range(2)] == [1, 1]


def test_no_pairs_are_refused():
    with pytest.raises(DataError, match="no pair is left to learn from"):
        PairLoader([], TOKENS, seed=1)


def test_targets_are_shifted_and_padding_does_not_count():
    batch = make_pair_batch(
        [EncodedPair(np.array([5, 6, 9]), np.array([1, 7, 9])), EncodedPair(np.array([9]), np.array([1, 2, 3, 9]))]
    )
    assert batch.ids.tolist() == [[1, 7, 9], [1, 2, 3]]
    assert batch.targets.tolist() == [[7, 9, 0], [2, 3, 9]]
    assert batch.loss_weights.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert (batch.source.ids.tolist(), batch.source.lengths) == ([[5, 6, 9], [9, 0, 0]], [3, 1])
    assert batch.tokens == 3 + 3 + 3 + 1  # of both languages, without padding
    part = batch.rows(1, 2)
    assert (part.ids.tolist(), part.source.lengths, part.count, len(part)) == ([[1, 2, 3]], [1], 3, 1)


def test_evaluation_has_every_pair_once(pairs):
    assert sorted(chain(*map(members, evaluation_batches(pairs, TOKENS)))) == list(range(1, 301))

"""Batches of pairs: similar lengths, all pairs once per epoch, a function of (seed, step)."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from foretell.errors import DataError
from foretell.translation.batches import (
    GROUPS,
    EncodedPair,
    PairLoader,
    PairObjective,
    cut,
    evaluation_batches,
    make_pair_batch,
)
from foretell.translation.config import shape_config
from foretell.translation.encoder_decoder import make_encoder_decoder

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


def groups(batch, tokens=TOKENS):
    return [batch.rows(first, last) for first, last in cut(batch.row_lengths, tokens // GROUPS)]


def test_batches_hold_at_most_so_many_tokens_and_little_padding(pairs):
    loader = PairLoader(pairs, TOKENS, seed=1)
    batches = [loader.batch(step) for step in range(loader.batches_per_epoch)]
    sizes = [sum(group.ids.numel() + group.source.ids.numel() for group in groups(batch)) for batch in batches]
    real = sum(batch.count + sum(batch.source.lengths) for batch in batches)
    assert max(sizes) <= TOKENS
    assert np.mean(sizes) > TOKENS / 2
    assert loader.padding == pytest.approx(1 - real / sum(sizes))
    assert loader.padding < 0.12


def test_every_batch_has_short_and_long_pairs(pairs):
    loader = PairLoader(pairs, TOKENS, seed=1)
    median = np.median(loader.lengths[:, 0])
    for step in range(loader.batches_per_epoch - 1):
        lengths = loader.batch(step).source.lengths
        assert min(lengths) < median < max(lengths)


def test_pairs_longer_than_a_group_are_groups_alone():
    long = EncodedPair(np.ones(100, int), np.ones(101, int))
    loader = PairLoader([long] * 5, batch_tokens=50, seed=1)
    assert [len(loader.batch(step)) for step in range(2)] == [3, 2]
    assert [len(group) for group in groups(loader.batch(0), 50)] == [1, 1, 1]


@pytest.mark.parametrize("rate", [0.0, 0.5], ids=["without dropout", "with dropout"])
def test_groups_have_the_loss_of_the_whole_batch(pairs, rate):
    dropout = {"embedding": rate, "attention": 0.0, "residual": rate}
    model = make_encoder_decoder(shape_config("toy", {"dropout": dropout}, vocab_size=301), seed=1)
    batch = PairLoader(pairs, 2000, seed=1).batch(0)
    whole, grouped = (PairObjective(model, 0.1, tokens).train() for tokens in (None, 2000))
    passes = []
    model.trunk.register_forward_pre_hook(lambda module, inputs: passes.append(len(inputs[0])))
    expected, loss = whole(batch), grouped(batch)
    torch.testing.assert_close(loss.sum, expected.sum)
    torch.testing.assert_close(loss.parts, expected.parts)
    assert loss.count == expected.count
    assert len(passes) == 1 + GROUPS
    assert passes[0] == sum(passes[1:])


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
    assert batch.tokens == 3 + 2 + 3 + 1  # of both languages, without padding
    part = batch.rows(1, 2)
    assert (part.ids.tolist(), part.source.ids.tolist(), part.count, len(part)) == ([[1, 2, 3]], [[9]], 3, 1)
    assert batch.rows(0, 1).ids.tolist() == [[1, 7]]


def test_evaluation_has_every_pair_once(pairs):
    assert sorted(chain(*map(members, evaluation_batches(pairs, TOKENS)))) == list(range(1, 301))

"""Batches of pairs: rows of several pairs, all pairs once per epoch, a function of (seed, step)."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from foretell.errors import DataError
from foretell.translation import batches
from foretell.translation.batches import EncodedPair, PairLoader, PairObjective, evaluation_batches, make_pair_batch
from foretell.translation.config import shape_config
from foretell.translation.encoder_decoder import make_encoder_decoder

TOKENS, CONTEXT = 120, 256


@pytest.fixture(scope="module")
def pairs() -> list[EncodedPair]:
    """Pairs with a number of their own as the second id."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 14, size=(300, 2))
    return [
        EncodedPair(np.full(source, n + 1), np.full(target + 1, n + 1)) for n, (source, target) in enumerate(lengths)
    ]


def members(batch) -> list[int]:
    return batch.ids[(batch.positions == 0) & (batch.document_ids >= 0)].tolist()


def test_an_epoch_has_every_pair_once_in_another_order(pairs):
    loader = PairLoader(pairs, TOKENS, 1, CONTEXT)
    count = loader.batches_per_epoch
    epochs = [[members(loader.batch(epoch * count + index)) for index in range(count)] for epoch in range(2)]
    for epoch in epochs:
        assert sorted(chain(*epoch)) == list(range(1, 301))
    assert epochs[0] != epochs[1]


def test_a_batch_depends_on_seed_and_step_alone(pairs):
    first, again, other = (PairLoader(pairs, TOKENS, seed, CONTEXT) for seed in (1, 1, 2))
    assert torch.equal(first.batch(30).ids, (again.batch(5), again.batch(30))[1].ids)
    assert [members(first.batch(step)) for step in range(4)] != [members(other.batch(step)) for step in range(4)]


def test_batches_hold_about_so_many_tokens_and_little_padding(pairs):
    loader = PairLoader(pairs, 600, 1, CONTEXT)
    made = [loader.batch(step) for step in range(loader.batches_per_epoch)]
    real = [batch.tokens for batch in made]
    padded = [batch.ids.numel() + batch.source.ids.numel() for batch in made]
    assert sum(real) == loader.lengths.sum()
    assert max(real) < 1.1 * 600
    assert min(real) > 0.9 * 600
    assert sum(padded) < 1.1 * sum(real)


def test_pairs_longer_than_a_batch_are_batches_alone():
    long = EncodedPair(np.ones(100, int), np.ones(101, int))
    loader = PairLoader([long] * 5, 50, 1, CONTEXT)
    assert [loader.batch(step).tokens for step in range(5)] == [200] * 5


def test_the_longest_sentence_sets_the_length_of_rows():
    short, long = EncodedPair(np.ones(9, int), np.ones(11, int)), EncodedPair(np.ones(90, int), np.ones(101, int))
    batch = make_pair_batch([*[short] * 10, long], CONTEXT)
    assert (tuple(batch.ids.shape), tuple(batch.source.ids.shape)) == ((2, 100), (2, 90))


def test_rows_fit_the_context(pairs):
    batch = make_pair_batch(pairs, 15)
    assert max(batch.ids.shape[1], batch.source.ids.shape[1]) <= 15
    assert sorted(members(batch)) == list(range(1, 301))


@pytest.mark.parametrize("shape", ["toy", "vaswani-tiny"])
def test_a_pair_has_the_loss_that_it_has_alone(pairs, shape, monkeypatch):
    monkeypatch.setattr(batches, "ROW_TOKENS", 30)
    objective = PairObjective(make_encoder_decoder(shape_config(shape, {}, vocab_size=301), seed=1).eval())
    batch, alone = make_pair_batch(pairs[:30], CONTEXT), {}
    for number, pair in enumerate(pairs[:30], 1):
        single = make_pair_batch([pair], CONTEXT)
        alone[number] = objective.token_losses(single)[single.loss_weights > 0]
    assert len(batch) > 4
    losses = objective.token_losses(batch)
    for row, documents in enumerate(batch.document_ids):
        for document in range(int(documents.max()) + 1):
            chosen = documents == document
            torch.testing.assert_close(losses[row, chosen], alone.pop(int(batch.ids[row, chosen][0])))
    assert not alone


def test_padding_has_finite_gradients(pairs):
    """Where a row of the target is padded and its source is not, a query of padding must see some key."""
    model = make_encoder_decoder(shape_config("toy", {}, vocab_size=301), seed=1)
    uneven = [EncodedPair(np.ones(9, int), np.ones(3, int)), EncodedPair(np.ones(9, int), np.ones(10, int))]
    batch = make_pair_batch(uneven, CONTEXT)
    PairObjective(model).train()(batch).sum.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_no_pairs_are_refused():
    with pytest.raises(DataError, match="no pair is left to learn from"):
        PairLoader([], TOKENS, 1, CONTEXT)


def test_targets_are_shifted_and_padding_does_not_count(monkeypatch):
    monkeypatch.setattr(batches, "ROW_TOKENS", 4)
    batch = make_pair_batch(
        [
            EncodedPair(np.array([5, 6, 9]), np.array([1, 7, 9])),
            EncodedPair(np.array([9]), np.array([1, 2, 9])),
            EncodedPair(np.array([4, 9]), np.array([1, 2, 3, 9])),
        ],
        CONTEXT,
    )
    assert batch.ids.tolist() == [[1, 7, 1, 2], [1, 2, 3, 0]]
    assert batch.targets.tolist() == [[7, 9, 2, 9], [2, 3, 9, 0]]
    assert batch.loss_weights.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch.positions.tolist() == [[0, 1, 0, 1], [0, 1, 2, 0]]
    assert batch.document_ids.tolist() == [[0, 0, 1, 1], [0, 0, 0, -1]]
    assert (batch.source.ids.tolist(), batch.source.lengths) == ([[5, 6, 9, 9], [4, 9, 0, 0]], [4, 2])
    assert batch.source.document_ids is not None
    assert batch.source.document_ids.tolist() == [[0, 0, 0, 1], [0, 0, -1, -1]]
    assert batch.tokens == 4 + 3 + 4 + 2  # of both languages, without padding
    part = batch.rows(1, 2)
    assert (part.ids.tolist(), part.source.ids.tolist()) == ([[1, 2, 3, 0]], [[4, 9, 0, 0]])
    assert (part.count, len(part)) == (3, 1)


def test_a_batch_has_rows_for_all_processes_and_their_micro_batches(pairs):
    long = EncodedPair(np.ones(250, int), np.ones(251, int))
    assert [len(make_pair_batch([*pairs[:100], long], CONTEXT, fewest)) for fewest in (1, 8, 500)] == [5, 8, 101]


def test_evaluation_has_every_pair_once(pairs):
    assert sorted(chain(*map(members, evaluation_batches(pairs, TOKENS, CONTEXT)))) == list(range(1, 301))

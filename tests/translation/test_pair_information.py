"""Initial vectors of tokens that follow from the pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from foretell.training.similar_vectors import STD
from foretell.translation import pair_information
from foretell.translation.batches import EncodedPair
from foretell.translation.pair_information import count_together, give_similar_vectors, mutual_information

END = 12
# Token t of the source is translated as t + 6; the words of a pair are random
WORDS = [np.random.default_rng(seed).choice(5, 2, replace=False) for seed in range(200)]
PAIRS = [EncodedPair(np.append(words, END), np.array([END, *(words + 6), END])) for words in WORDS]
SEPARATE = [EncodedPair(pair.source % 7, pair.target) for pair in PAIRS]  # 12 becomes 5


def test_a_token_begins_near_its_translation(make_model):
    model = make_model("modern", torch.float32, width=16)
    before = model.embed.token.weight.clone()
    give_similar_vectors(model, PAIRS, seed=1)
    weight = model.embed.token.weight
    similarity = F.normalize(weight, dim=1) @ F.normalize(weight, dim=1).T
    assert (similarity[:5, 6:11].diagonal() > 0.99).all()
    assert (similarity[:5, :5] - torch.eye(5) < 0.5).all()
    torch.testing.assert_close(weight[:5].square().mean(1).sqrt(), torch.full((5,), STD))
    assert torch.equal(weight[[5, 11, END]], before[[5, 11, END]])  # in no pair, and in all
    assert weight is model.encoder.embed.token.weight is model.head.weight
    again = make_model("modern", torch.float32, width=16)
    give_similar_vectors(again, PAIRS, seed=1)
    assert torch.equal(again.embed.token.weight, weight)


def test_the_vocabularies_may_be_two(make_model):
    model = make_model("two vocabularies", torch.float32, width=16)
    give_similar_vectors(model, SEPARATE, seed=1)
    target, source = (F.normalize(embed.token.weight, dim=1) for embed in (model.embed, model.encoder.embed))
    assert ((source[:5] * target[6:11]).sum(1) > 0.99).all()


def test_the_information_follows_from_the_counts():
    counts = count_together(PAIRS, 13, 0)
    both = sum({0, 1} <= set(words.tolist()) for words in WORDS)
    zero, one = (sum(token in words for words in WORDS) for token in (0, 1))
    assert (counts[0, 1], counts[1, 6], counts[0, 0], counts[END, END]) == (both, both, zero, len(PAIRS))
    information = mutual_information(counts)
    assert information[0, 6] == pytest.approx(np.log(len(PAIRS) / zero), rel=1e-5)
    assert information[0, 1] == pytest.approx(max(0.0, np.log(both * len(PAIRS) / (zero * one))), abs=1e-5)
    assert information[5].tolist() == [0.0] * 13


def test_of_too_many_pairs_some_are_counted_and_large_vocabularies_are_left(make_model, monkeypatch):
    monkeypatch.setattr(pair_information, "MOST_PRODUCTS", 49 * len(PAIRS) // 4)
    assert count_together(PAIRS, 13, 0)[END, END] == len(PAIRS) / 4
    monkeypatch.setattr(pair_information, "MOST_TOKENS", 12)
    model = make_model("modern")
    before = model.embed.token.weight.clone()
    give_similar_vectors(model, PAIRS, seed=1)
    assert torch.equal(model.embed.token.weight, before)

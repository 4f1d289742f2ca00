"""Tokens with the same neighbors begin with similar vectors; a function of text and seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import foretell
from foretell.pretraining import pretrain
from foretell.training import similar_vectors as module
from foretell.training.similar_vectors import information_of_neighbors, set_similar_vectors, similar_vectors

DET, VERB, UNSEEN = 20, 21, 25  # a text of "DET noun VERB adverb"; nouns are below 10, adverbs from 10 to 19
V, D = 30, 16


@pytest.fixture(scope="module")
def text() -> np.ndarray:
    draw = np.random.default_rng(0)
    words = [np.full(2000, DET), draw.integers(0, 10, 2000), np.full(2000, VERB), draw.integers(10, 20, 2000)]
    return np.stack(words, 1).ravel()


def cosine(vectors: torch.Tensor, first: int, second: int) -> float:
    return float(torch.cosine_similarity(vectors[first], vectors[second], dim=0))


def test_tokens_with_the_same_neighbors_have_similar_vectors(text: np.ndarray) -> None:
    vectors = similar_vectors(information_of_neighbors(text, V), D, seed=1)
    assert cosine(vectors, 1, 2) > 0.99 and cosine(vectors, 12, 17) > 0.99
    assert abs(cosine(vectors, 1, 12)) < 0.1
    assert vectors[1].norm() == pytest.approx(D**0.5)


def test_the_information_is_that_of_the_pairs(text: np.ndarray) -> None:
    information = information_of_neighbors(text, V)
    counts = np.zeros((V, V))
    np.add.at(counts, (text[1:], text[:-1]), 1)  # token, and the one before it
    frequency = np.bincount(text, minlength=V)
    order = np.argsort(-frequency, kind="stable")
    alone = counts.sum(0) ** module.SMOOTHING
    with np.errstate(divide="ignore", invalid="ignore"):
        by_chance = frequency[:, None] / len(text) * counts.sum() * alone / alone.sum()
        expected = np.log(counts / by_chance)[:, order]
    expected = np.where(np.isfinite(expected) & (expected > 0), expected, 0)
    torch.testing.assert_close(information[:, :V], torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-4)


def test_unseen_tokens_keep_their_vectors_and_equal_seeds_give_equal_ones(text: np.ndarray) -> None:
    weights = [torch.ones(V, D) for _ in range(3)]
    for weight, seed in zip(weights, (1, 1, 2), strict=True):
        set_similar_vectors([weight], information_of_neighbors(text, V), seed)
    first, again, other = weights
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first[UNSEEN], torch.ones(D))
    assert first[1].std() == pytest.approx(module.STD, rel=0.3)


def test_rare_contexts_and_large_vocabularies_take_little_memory(
    text: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_COUNTS", 2 * V * 2)  # two contexts on either side: the most frequent tokens
    information = information_of_neighbors(text, V)
    assert information.shape == (V, 4)
    assert cosine(similar_vectors(information, D, seed=1), 1, 2) > 0.99


@pytest.mark.parametrize("are_similar", [True, False])
def test_a_new_model_has_them_unless_the_settings_say_no(tmp_path, are_similar: bool) -> None:
    path = tmp_path / "pets.txt"
    path.write_text(" the cat sat on a mat. the dog sat on a log." * 200)
    options = {"steps": 1, "training": {"similar_vectors": are_similar, "learning_rate": 1e-9}, "progress": False}
    model = foretell.train(path, tmp_path / "run", size="toy", **options)
    [cat], [dog] = (model.encode(word) for word in (" cat", " dog"))
    assert (cosine(model.decoder.embed.token.weight.detach(), cat, dog) > 0.9) == are_similar


def test_steps_that_are_measured_need_none(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(pretrain, "set_similar_vectors", lambda *arguments: calls.append(arguments))
    path = tmp_path / "pets.txt"
    path.write_text("".join(f"The cat number {number} sat on a mat. " for number in range(2000)))
    foretell.train(path, tmp_path / "run", minutes=0.05, training={"similar_vectors": True}, progress=False)
    assert len(calls) == 1

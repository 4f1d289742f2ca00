"""The lesson on the smallest decoder: a wrong weight, mask or scale fails its checks."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from foretell.lessons.smallest import BLOCK, LAYER, MASK_NUMBER, SmallestLesson, draw_weights
from foretell.model.attention import CORE, SDPAttention, attention_scores
from foretell.model.cache import FreshKVView
from foretell.model.mask import Mask


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("embed.token.weight", "x = word + position"),
        (f"{LAYER}.query.weight", "query weight"),
        (f"{LAYER}.value.weight", "attention output"),
        ("head.bias", "next-token probabilities"),
    ],
)
def test_a_changed_weight_fails(path, what, failures):
    weights = draw_weights()
    weights[path] = weights[path].clone()
    weights[path].view(-1)[0] += 0.01
    assert what in failures(SmallestLesson(weights).checks())


def test_a_changed_weight_of_the_completed_layer_fails(lessons, altered, failures):
    lesson = lessons["smallest"]
    path = f"{BLOCK}.feedforward.down.weight"
    weights = lesson.completed_weights | {path: lesson.completed_weights[path] * 1.01}
    assert failures(altered(lesson, completed_weights=weights).checks()) == [
        "the completed layer: the textbook's and the model's logits"
    ]


def test_unscaled_scores_fail(monkeypatch, failures):
    unscaled = dataclasses.replace(CORE.derived["scaled"], compute=attention_scores)
    monkeypatch.setitem(CORE.derived, "scaled", unscaled)
    assert "scaled scores" in failures(SmallestLesson().checks())


def test_a_mask_that_shows_the_next_token_fails(monkeypatch, failures):
    def next_token_visible(core, query, key, value, mask):
        T = query.shape[-2]
        allowed = torch.ones(T, T, dtype=torch.bool).tril(1)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)

    monkeypatch.setattr(SDPAttention, "forward", next_token_visible)
    failed = failures(SmallestLesson().checks())
    assert {"attention output", "next-token probabilities"} <= set(failed)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"masked_by_number": np.full((5, 5), 0.2)}, "masked with -1e9 and with -∞: weights"),
        ({"fully_masked": {MASK_NUMBER: [0.2] * 5, -np.inf: [0.2] * 5}}, "a row masked completely, with -∞"),
        ({"other_positions": np.zeros((3, 3))}, "positions of 'awesome data!' are 0, 1, 2"),
    ],
)
def test_a_wrong_figure_next_to_a_slip_fails(lessons, altered, failures, changes, what):
    assert what in failures(altered(lessons["smallest"], **changes).checks())


def test_packed_texts_without_a_document_mask_fail(monkeypatch, failures):
    monkeypatch.setattr(FreshKVView, "mask", lambda kv, window: Mask(*kv.positions.shape[-1:] * 2))
    assert failures(SmallestLesson().checks()) == ["losses packed and alone"]


def test_the_first_word_has_no_probability_without_a_start_token(lessons):
    score = lessons["smallest"].score
    assert score.tokens[0].logprob is None
    assert math.exp(score.logprob) == pytest.approx(0.226309 * 0.129261 * 0.229152 * 0.094568 * 0.277526, rel=1e-4)
    assert "start token" in str(lessons["smallest"])

"""The smallest decoder: a wrong weight, mask or scale does not get past its figures."""

from __future__ import annotations

import math

import pytest
import torch

from foretell.insight import derive
from foretell.lessons.smallest_decoder.lesson import SmallestDecoder
from foretell.lessons.smallest_decoder.model import LAYER, draw_weights
from foretell.model.attention import SDPAttention
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
def test_a_changed_weight_is_noticed(path, what, failures):
    weights = draw_weights()
    weights[path] = weights[path].clone()
    weights[path].view(-1)[0] += 0.01
    assert what in failures(SmallestDecoder(weights).checks())


def test_scores_that_are_not_scaled_are_noticed(monkeypatch, failures):
    monkeypatch.setattr(derive, "scale", lambda scores, head_width: scores)
    assert "scaled scores" in failures(SmallestDecoder().checks())


def test_a_mask_one_too_wide_is_noticed(monkeypatch, failures):
    def one_more(core, query, key, value, mask):
        T = query.shape[-2]
        allowed = torch.ones(T, T, dtype=torch.bool).tril(1)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)

    monkeypatch.setattr(SDPAttention, "forward", one_more)
    failed = failures(SmallestDecoder().checks())
    assert {"attention output", "next-token probabilities"} <= set(failed)


def test_packed_texts_that_see_each_other_are_noticed(monkeypatch, failures):
    monkeypatch.setattr(FreshKVView, "mask", lambda kv, window: Mask(*kv.positions.shape[-1:] * 2))
    assert failures(SmallestDecoder().checks()) == ["losses packed and alone"]


def test_the_first_word_has_no_probability(lessons):
    chain = lessons["smallest"].found.chain
    assert chain.logprobs[0] is None
    assert math.exp(chain.logprob) == pytest.approx(0.226309 * 0.129261 * 0.229152 * 0.094568 * 0.277526, rel=1e-4)
    assert "start token" in str(lessons["smallest"])

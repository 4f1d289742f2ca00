"""The check with the textbook: it passes for a correct model, and fails for a wrong one."""

from __future__ import annotations

import json

import pytest
import torch

from foretell.errors import UsageError
from foretell.insight.explain import textbook_check
from foretell.insight.explain.textbook_check import check
from foretell.insight.trace import Trace

TEXT = "abcafig!"


def test_textbook_and_model_agree_for_every_decoder(config, make_model):
    outcome = check(make_model(config), TEXT)
    assert outcome.holds, str(outcome)
    assert [(difference.dtype, difference.bound) for difference in outcome.differences] == [
        ("float32", 1e-3),
        ("float64", 1e-10),
    ]
    assert max(map(len, str(outcome).splitlines())) <= 80
    assert json.loads(json.dumps(outcome.to_json(), allow_nan=False))["holds"]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_model_that_computes_something_else_breaks_the_bound(make_model, name):
    model = make_model(name)
    assert check(model, TEXT).holds
    with Trace(model, replace={"trunk.blocks.0.attention": lambda update: update * 1.05}):
        assert [difference.holds for difference in check(model, TEXT).differences] == [False, False]


def test_a_model_with_another_epsilon_breaks_the_bound(make_model):
    model = make_model("gpt2")
    model.decoder.trunk.norm.eps = 0.1
    outcome = check(model, TEXT)
    assert not outcome.holds
    assert [difference.holds for difference in outcome.differences] == [False, False]
    assert "BROKEN" in str(outcome)
    assert "NOT" in outcome.verdict


@pytest.mark.parametrize("name", ["gpt2", "smallest"])
def test_positions_compared_a_few_at_a_time_give_the_same_result(make_model, name, monkeypatch):
    whole = check(make_model(name), TEXT)
    monkeypatch.setattr(textbook_check, "LOGITS_AT_ONCE", 1)
    parts = check(make_model(name), TEXT)
    largest = [difference.largest for difference in whole.differences]
    assert [difference.largest for difference in parts.differences] == pytest.approx(largest, abs=1e-6)
    assert [token.id for token in parts.tokens] == [token.id for token in whole.tokens]


def test_nan_logits_break_the_bound(make_model):
    model = make_model("gpt2")
    model.decoder.trunk.norm.weight.data[0] = torch.nan
    outcome = check(model, TEXT)
    assert not outcome.holds
    json.dumps(outcome.to_json(), allow_nan=False)


def test_bfloat16_has_no_bound_but_a_difference(make_model):
    low, double = check(make_model("gpt2", torch.bfloat16), TEXT).differences
    assert (low.bound, low.holds) == (None, True)
    assert low.share > 1e-4
    assert double.holds


def test_a_model_in_float64_is_compared_once(make_model):
    assert len(check(make_model("gpt2", torch.float64), TEXT).differences) == 1


def test_the_check_leaves_the_model_unchanged(make_model):
    model = make_model("gpt2")
    check(model, TEXT)
    assert model.dtype == torch.float32


def test_an_empty_text_is_refused(make_model):
    with pytest.raises(UsageError, match="empty"):
        check(make_model("gpt2"), "")

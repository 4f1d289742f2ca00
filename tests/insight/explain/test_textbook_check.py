"""The textbook beside the model: near where the model is right, and told where it is not."""

from __future__ import annotations

import json

import pytest
import torch

from foretell.errors import UsageError
from foretell.insight.explain.textbook_check import check
from foretell.insight.trace import Trace

TEXT = "abcafig!"


def test_textbook_and_model_agree_for_every_decoder(config, make_model):
    found = check(make_model(config), TEXT)
    assert found.holds, str(found)
    assert [(one.dtype, one.bound) for one in found.differences] == [("float32", 1e-3), ("float64", 1e-10)]
    assert max(map(len, str(found).splitlines())) <= 80
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["holds"]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_model_that_computes_something_else_breaks_the_bound(make_model, name):
    model = make_model(name)
    assert check(model, TEXT).holds
    with Trace(model, replace={"trunk.blocks.0.attention": lambda update: update * 1.05}):
        assert [one.holds for one in check(model, TEXT).differences] == [False, False]


def test_a_model_of_another_norm_breaks_the_bound(make_model):
    model = make_model("gpt2")
    model.decoder.trunk.norm.eps = 0.1
    found = check(model, TEXT)
    assert not found.holds
    assert [one.holds for one in found.differences] == [False, False]
    assert "BROKEN" in str(found)
    assert "NOT" in found.verdict


def test_numbers_that_are_none_are_a_broken_bound_too(make_model):
    model = make_model("gpt2")
    model.decoder.trunk.norm.weight.data[0] = torch.nan
    found = check(model, TEXT)
    assert not found.holds
    json.dumps(found.to_json(), allow_nan=False)


def test_in_bfloat16_no_bound_is_promised_and_the_difference_is_shown(make_model):
    low, double = check(make_model("gpt2", torch.bfloat16), TEXT).differences
    assert (low.bound, low.holds) == (None, True)
    assert low.share > 1e-4
    assert double.holds


def test_a_model_in_float64_is_compared_once(make_model):
    assert len(check(make_model("gpt2", torch.float64), TEXT).differences) == 1


def test_the_model_is_as_it_was(make_model):
    model = make_model("gpt2")
    check(model, TEXT)
    assert model.dtype == torch.float32


def test_an_empty_text_is_refused(make_model):
    with pytest.raises(UsageError, match="empty"):
        check(make_model("gpt2"), "")

"""What a page of limited size holds: a fixed order, and a sentence for everything left out."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.errors import OutputError, UsageError
from foretell.insight.page.packing import pack_weights
from foretell.insight.page.write_page import choose, page_html, record_all, required

TEXT = "abcdefghij"
PLENTY = 10**7
KINDS = (
    "embed.sum", "final", "values.0.attention_norm.mean", "contributions.0", "learning.step",
    "neurons.ids.0", "neurons.writes.0.0", "stream.1", "queries.0", "values.0.feedforward.up",
)  # fmt: skip


@pytest.fixture(scope="module")
def traced(make_model):
    return record_all(make_model("gpt2", width=64), TEXT)


def names(contents):
    return [section.name for section in (*contents.sections, *contents.rest)]


def test_with_enough_room_nothing_is_left_out(traced):
    contents = choose(traced, PLENTY, PLENTY)
    assert contents.cut == []
    assert set(KINDS) < set(names(contents))


def test_the_last_in_the_order_is_left_out_first(traced):
    whole = choose(traced, PLENTY, PLENTY)
    less = choose(traced, whole.size - 1, PLENTY)
    last = [name for name in names(whole) if name.startswith("values.1.") and not name.endswith(("mean", "variance"))]
    assert set(names(whole)) - set(names(less)) == set(last)
    assert less.cut == [
        "Left out, since the page would exceed 10 MB: the other values of the layers, layer by layer; kept for the "
        "first 1 of 2."
    ]


def test_every_kind_that_is_left_out_is_reported(traced):
    must = sum(len(section.content) for section in required(traced))
    whole = choose(traced, PLENTY, PLENTY)
    attention = sum(len(section.content) for section in whole.sections if "attention" in section.name)
    contents = choose(traced, must + attention, PLENTY)
    assert len(contents.cut) == 10
    assert contents.first_query == 0
    assert not set(KINDS) & set(names(contents))


def test_a_long_text_keeps_the_values_of_the_last_positions_one_by_one(make_model, monkeypatch):
    monkeypatch.setattr("foretell.insight.page.block_sections.MOST_NUMBERS", 1000)
    traced = record_all(make_model("gpt2", width=64), TEXT)
    whole = choose(traced, PLENTY, PLENTY)
    assert {"streams.2", "streams.9", "values.at.0.2", "values.at.1.9"} < set(names(whole))
    assert "values.at.0.1" not in names(whole)


def test_attention_that_is_too_large_keeps_the_last_queries(traced):
    must = sum(len(section.content) for section in required(traced))
    contents = choose(traced, must + 200, PLENTY)
    assert 0 < contents.first_query < 10
    assert contents.size <= must + 200
    assert contents.cut[0].startswith(f"Attention is kept for the last {10 - contents.first_query} of 10")
    rows = sum(query + 1 for query in range(contents.first_query, 10))
    assert [section.shape for section in contents.sections if section.name == "attention.0"] == [(2, rows)]


@pytest.mark.parametrize("budget", [246_000, 300_000])
def test_a_page_is_never_larger_than_its_budget(make_model, budget):
    model = make_model("gpt2", width=256, num_layers=6)
    assert len(page_html(model, TEXT, budget).encode()) <= budget


def test_a_budget_that_no_page_fits_is_an_error(make_model):
    with pytest.raises(OutputError, match=r"needs \d+ kB and may have 10 kB"):
        page_html(make_model("gpt2"), TEXT, 10_000)


@pytest.mark.parametrize("budget", [0, -5])
def test_a_budget_that_is_not_positive_is_refused(make_model, budget):
    with pytest.raises(UsageError, match=f"budget_bytes must be a whole number, 1 or more, not {budget}"):
        page_html(make_model("gpt2"), TEXT, budget)


def test_a_model_with_nan_weights_is_refused_by_name(make_model):
    model = make_model("gpt2")
    model.decoder.trunk.blocks[1].get_submodule("attention").query.weight.data.fill_(float("nan"))
    # which value is the first that is not finite depends on the processor: not the weights with AVX2
    with pytest.raises(OutputError, match=r"(trunk.blocks.1.attention.core.weights|logits) are not all finite"):
        page_html(model, TEXT)


def test_incompressible_attention_of_gpt2s_shape_fits():
    """12 layers, 12 heads, 256 tokens, weights that do not compress: 12.7 MB of the 20."""
    pairs = 256 * 257 // 2
    noise = np.random.default_rng(0).integers(0, 10_001, (12, pairs)).astype(np.uint16)
    assert 12 * len(pack_weights("attention.0", noise).content) < 12_700_000

"""Trace, explain, attribution and page of a translation model show both texts."""

from __future__ import annotations

import json
import random

import pytest
import torch

from foretell.errors import UsageError
from foretell.insight.address import one_row
from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution
from foretell.insight.attribution.head_patterns import CROSS, ENCODER, OWN, memory_patterns
from foretell.insight.attribution.logit_lens import logit_lens
from foretell.insight.explain.explain_address import explain, explain_value
from foretell.insight.page.write_page import page_html, record_all
from foretell.insight.trace import Trace, trace_names
from foretell.language_model import LanguageModel
from foretell.translation.translator import Translator

SOURCE, TARGET = "the cat sat", "le chien"


@pytest.fixture
def given(translator: Translator) -> LanguageModel:
    return translator.given(SOURCE)


def test_every_value_of_both_sides_follows_from_its_operands(given):
    rng = random.Random(0)
    with torch.no_grad(), Trace(given, "**") as trace:
        given.decoder(torch.tensor([given.encode(TARGET)]))
    for name in trace_names(given):
        shape = one_row(trace.structure[name], trace[name]).shape
        explanation = explain_value(given, TARGET, f"{name}{[rng.randrange(size) for size in shape]}")
        assert explanation.agrees, name


def test_the_axes_have_the_tokens_of_both_texts(given):
    address = "trunk.blocks.0.cross_attention.core.weights[0,1,2]"
    assert explain_value(given, TARGET, address).meaning == ("head 0", "query 1 'le'", "memory key 2 'sat'")
    encoder = explain_value(given, TARGET, "encoder.trunk.blocks.1.attention.core.weights[0,0,3]")
    assert encoder.meaning[1:] == ("memory query 0 'the'", "memory key 3 '<|endoftext|>'")
    assert encoder.stored > 0  # the encoder sees what comes later
    with Trace(given, "**.weights") as trace:
        given.decoder(torch.tensor([given.encode(TARGET)]))
    view = trace.view("trunk.blocks.0.cross_attention.core.weights[0]")
    assert view.dimensions == ("query", "memory key")
    assert (len(view.tokens), len(view.memory_tokens)) == view.values.shape == (3, 4)


def test_the_walk_shows_what_is_read_of_the_source(given):
    walk = explain(given, TARGET)
    text = str(walk)
    for words in ("The source: 4 tokens", "'cat'", "What it reads of the source from there, 'chien'"):
        assert words in text
    assert [entry["text"] for entry in walk.to_json()["memory"]] == ["the", "cat", "sat", "<|endoftext|>"]


def test_the_patterns_have_three_kinds(given):
    patterns = memory_patterns(given, TARGET)
    shapes = {(each.kind, tuple(each.weights.shape)) for each in patterns.layers}
    assert shapes == {(ENCODER, (2, 4, 4)), (OWN, (2, 3, 3)), (CROSS, (2, 3, 4))}
    for each in patterns.layers:
        torch.testing.assert_close(each.weights.sum(-1), torch.ones_like(each.weights[..., 0]))
    assert "over all query tokens but the first" in " ".join(str(patterns).split())
    assert "encoder-decoder attention, layer 1" in str(patterns.layer(1))
    assert "columns: 'the'  'cat'  'sat'" in str(patterns.layer(1))
    with pytest.raises(UsageError, match="layer 2 does not exist"):
        patterns.layer(2)


def test_contributions_of_heads_that_read_the_source_add_up(given):
    attribution = direct_logit_attribution(given, TARGET)
    assert any("cross_attention" in part.name for part in attribution.parts)
    assert attribution.total == pytest.approx(attribution.logit)
    assert len(logit_lens(given, TARGET).positions) == 3


def test_the_page_holds_both_texts_and_all_attention(given):
    traced = record_all(given, TARGET)
    assert given.memory is not None
    assert given.memory.pieces == ["the", "cat", "sat", "<|endoftext|>"]
    shapes = [traced.memory_weights(name).shape for name in (*traced.page.cross, *traced.page.encoder)]
    assert shapes == [(2, 3, 4)] * 2 + [(2, 4, 4)] * 2
    document = page_html(given, TARGET)
    structure = json.loads(document.split('<script type="application/json" id="structure">')[1].split("</script>")[0])
    assert len(structure["memory"]["tokens"]) == 4


def test_the_page_shows_them_in_a_browser(given, browser, tmp_path, accessibility_problems):
    (tmp_path / "page.html").write_text(page_html(given, TARGET), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.goto(f"file://{tmp_path / 'page.html'}")
    page.wait_for_selector("html[data-complete=true]", timeout=300_000)
    assert page.locator("#cross-map thead th").all_inner_texts() == ["the", "cat", "sat", "<|endoftext…"]
    assert page.locator("#cross-map tbody th").all_inner_texts() == ["<|endoftext|>", "le", "chien"]
    assert page.locator("#encoder-map tbody tr").count() == 4
    page.locator("#cross-map tbody th button").nth(1).click()
    assert page.locator("#cross-reading").inner_text().startswith("“le” (1) reads most of")
    labels = page.locator("#cross-values .vector-labels span").all_inner_texts()
    read = page.locator("#cross-reading").inner_text().partition("reads most of ")[2].partition(":")[0]
    assert {f"key of {read}", f"value of {read}"} < set(labels)
    for element in page.locator("#cross-values tbody tr td:first-of-type").all():
        shown = float(element.text_content().replace("−", "-"))
        assert shown == pytest.approx(
            explain_value(given, TARGET, element.get_attribute("data-address")).stored, abs=6e-5
        )
    assert page.locator("#contribution-cross_attention-heads tbody tr").count() == 2
    assert failures == []
    assert accessibility_problems(page) == []
    page.close()

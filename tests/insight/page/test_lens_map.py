"""In a real browser: the lens over layers and positions."""

from __future__ import annotations

import pytest
import torch

from foretell.insight.page.write_page import record_all


@pytest.fixture(scope="module")
def lens(primer):
    traced = record_all(*primer)
    return [traced.lens(point) for point in range(5)]


def reading(opened):
    return opened.text("#lens-reading")


def test_a_cell_is_read_with_probability_rank_and_entropy(primer_page, lens):
    page = primer_page.page
    page.locator("#token-select").select_option("2")
    page.locator("#layer-select").select_option("1")
    page.locator("#lens-canvas").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    own = lens[3]  # after layer 2
    words = reading(primer_page)
    assert "(3), after layer 2: top " in words
    assert f" {own.probabilities[3, 0]:.4f}; " in words
    assert f"probability {own.following[3]:.4f}, rank {own.ranks[3] + 1:,}" in words
    assert words.endswith(f"entropy {own.entropies[3]:.4f} nats")
    page.keyboard.press("Enter")
    assert page.locator("#token-select").input_value() == "3"
    assert page.locator("#layer-select").input_value() == "2"


def test_the_pointer_reads_the_cell_under_it(primer_page, lens):
    canvas = primer_page.page.locator("#lens-canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    primer_page.page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 4)
    assert f"(6), embedding: top “ is” {lens[0].probabilities[-1, 0]:.4f}".replace("“ ", "“␣") in reading(primer_page)
    assert "next token" not in reading(primer_page), "the last token has none"


def test_every_quantity_can_be_chosen(primer_page):
    for quantity in ("following", "rank", "entropy", "top"):
        primer_page.page.locator("#lens-quantity").select_option(quantity)
        assert primer_page.page.locator("#lens-map .swatch").count() >= 4
    assert primer_page.complaints == []


def test_entropies_are_those_of_the_distributions(primer, lens):
    model, text = primer
    with torch.inference_mode():
        logits = model.decoder(torch.tensor([model.tokenizer.encode(text)]))[0, :, : model.tokenizer.vocab_size]
    expected = torch.distributions.Categorical(logits=logits.double()).entropy()
    torch.testing.assert_close(torch.from_numpy(lens[-1].entropies).double(), expected, rtol=1e-5, atol=1e-5)

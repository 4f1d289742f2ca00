"""In a real browser: the values of a block are in the order of the pass, and their numbers are a trace's."""

from __future__ import annotations

import pytest
import torch

from foretell.insight.address import one_row, parse_address
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.page.sections import FAMILIES
from foretell.insight.trace import Trace

TEXT = "abcdefghij"
PLACES = (
    "attention-values", "head-outputs", "terms", "feedforward-values", "neurons", "vectors", "row-table", "formulas",
    "next-table", "here",
)  # fmt: skip
ADDRESSED = """(places) => places.flatMap((id) => [...document.querySelectorAll(`#${id} [data-address]`)]
    .filter((element) => element.tagName !== "CODE")
    .map((element) => [
        element.dataset.address, element.textContent.replace("−", "-"), element.matches("mn, #computed-weight"),
    ]))"""
# Computed in the page, from numbers to four decimals
COMPUTED = ("scores", "scaled", "terms", "divisor")


def recorded(model, text):
    """A function of an address that returns the number of a trace."""
    ids = torch.tensor([model.tokenizer.encode(text)])
    with torch.inference_mode(), Trace(model, "**") as trace:
        probabilities = model.decoder(ids)[0].softmax(-1)

    def number(address):
        wanted = parse_address(address)
        if wanted.name == "probabilities":
            return probabilities[tuple(map(int, wanted.index))].item()
        if wanted.name not in trace.structure.values:
            return explain_value(model, text, address).stored
        values = one_row(trace.structure[wanted.name], trace[wanted.name])
        return values[tuple(map(int, wanted.index))].item()

    return number


def assert_addressed_numbers_are_recorded(opened, number):
    shown = opened.ask(ADDRESSED, *PLACES)
    assert len(shown) > 70
    for address, text, is_computed in shown:
        assert_shown(text, number(address), is_computed or address.partition("[")[0].endswith(COMPUTED), address)


def assert_shown(text, number, is_computed, address):
    digits = len(text.partition(".")[2])
    if digits == 2:  # what a neuron writes, in float32
        assert abs(float(text) - number) <= 0.00501, address
    else:
        assert abs(in_digits(text) - float(f"{number:.4f}")) <= (0.01 if is_computed else 1e-9), address


def in_digits(text):
    """Small probabilities have more than four decimals, or are given as a bound."""
    return 0.0 if text == "< 0.0001" else round(float(text), 4)


def test_other_numbers_would_be_detected(make_model, open_page):
    model = make_model("gpt2")
    number = recorded(model, TEXT[::-1])
    opened = open_page(model, TEXT, "#token=6&key=5&layer=1")
    shown = opened.ask(ADDRESSED, "attention-values")
    assert any(f"{number(address):.4f}" != text for address, text, _ in shown)


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_numbers_of_single_positions_are_shown_where_a_file_lacks_the_others(name, make_model, open_page, monkeypatch):
    monkeypatch.setattr("foretell.insight.page.block_sections.MOST_NUMBERS", -1)
    whole = ("values.{}", "stream.{}")
    kept = [family for family in FAMILIES if family.name not in whole]
    monkeypatch.setattr("foretell.insight.page.write_page.FAMILIES", kept)
    model = make_model(name)
    number = recorded(model, TEXT)
    opened = open_page(model, TEXT, f"#token=6&key=5&layer=1&head={model.decoder.config.num_heads - 1}")
    shown = opened.ask(ADDRESSED, "attention-values", "feedforward-values", "head-outputs")
    assert len(shown) > 50
    for address, text, _ in shown:
        assert_shown(text, number(address), address.partition("[")[0].endswith(COMPUTED), address)
    assert opened.complaints == []


def labels(opened, place):
    return opened.page.locator(f"#{place} .vector-labels span").all_inner_texts()


def test_the_values_of_a_layer_are_in_the_order_of_the_pass(make_model, open_page):
    opened = open_page(make_model("qwen3"), TEXT, "#token=6&key=5&layer=1")
    assert labels(opened, "attention-values") == [
        "stream", "stream, normalized", "query", "query, normalized", "query, rotated", "key of “f” (5)",
        "key, normalized of “f” (5)", "key, rotated of “f” (5)", "value of “f” (5)", "head output", "attention output",
        "stream after attention",
    ]  # fmt: skip
    assert labels(opened, "feedforward-values") == [
        "stream after attention", "stream, normalized", "gate", "activation", "up", "feed-forward output",
        "stream after the feed-forward layer",
    ]  # fmt: skip
    facts = opened.page.locator("#attention-values dt").all_inner_texts()
    assert facts[:2] == ["mean square of the stream", "divisor of the stream, √(mean square + ε)"]


def test_a_model_without_rotary_positions_has_one_query(make_model, open_page):
    opened = open_page(make_model("gpt2"), TEXT)
    assert [label for label in labels(opened, "attention-values") if label.startswith("query")] == ["query"]


def test_a_model_without_a_feedforward_layer_has_no_such_section(make_model, open_page):
    opened = open_page(make_model("smallest"), TEXT)
    assert not opened.page.locator("#feedforward-section").is_visible()
    assert opened.page.locator("#contributions-section").is_visible()
    assert opened.complaints == []


def test_a_number_is_read_with_the_keys_and_kept_with_enter(make_model, open_page):
    model = make_model("gpt2")
    number = recorded(model, TEXT)
    opened = open_page(model, TEXT, "#token=6&key=5&layer=1")
    opened.page.locator("#head-outputs canvas").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        opened.page.keyboard.press(key)
    expected = f"{number('trunk.blocks.1.attention.core[1,6,2]'):.4f}".replace("-", "−")
    assert opened.text("#head-outputs-reading").startswith(f"head 1, dimension 2: {expected}")
    opened.page.keyboard.press("Enter")
    opened.page.locator("#terms button").focus()
    kept = opened.page.locator("#head-outputs-reading [data-address]")
    assert kept.get_attribute("data-address") == "trunk.blocks.1.attention.core[1,6,2]"
    opened.page.locator("#token-select").select_option("0")
    assert kept.get_attribute("data-address") == "trunk.blocks.1.attention.core[1,0,2]"


@pytest.mark.parametrize("form", ["llama", "gpt2"])
def test_the_terms_add_up_to_the_score(make_model, open_page, form):
    opened = open_page(make_model(form), TEXT, "#token=6&key=5&layer=1&head=1")
    rows = [line.split("\t") for line in opened.page.locator("#terms tbody tr").all_inner_texts()]
    *terms, score, _ = ([cell.replace("−", "-") for cell in row if cell] for row in rows)
    sizes = [abs(float(term[-1])) for term in terms]
    assert sizes == sorted(sizes, reverse=True)
    assert float(score[-1]) == pytest.approx(sum(float(term[-1]) for term in terms), abs=1e-3)
    assert opened.page.locator("#terms svg rect").count() == len(terms)
    if form == "llama":  # dimensions i and i + E/2 of heads of width 2 are one pair
        assert {row[1] for row in terms} == {"0"}


def test_the_terms_of_a_hidden_key_say_that_it_is_hidden(make_model, open_page):
    opened = open_page(make_model("gpt2"), TEXT, "#token=2&key=5")
    assert "The mask hides this key" in opened.text("#terms caption")

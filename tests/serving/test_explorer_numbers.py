"""Every number of the live page opens into its operands, and is the number that opens, in other passes too."""

from __future__ import annotations

import random
import re
from decimal import Decimal
from typing import Any

import pytest
import torch

import foretell
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.replacement import without_heads
from tests.serving.conftest import click, click_on, open_address, settled, show_part
from tests.serving.test_explorer_panels import CORE, OTHER, TEXT, link

CHANGE = [{"value": CORE, "heads": [1], "scale": 0}]
LAST = 4  # position of the text
SAMPLE = 60  # numbers that are opened
# Numbers with decimals outside of openers: what shows them, its table's heading if there is one, and the text
UNOPENED = r"""() => {
    const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const skipped = "script, option, textarea, [data-address], .sr, .tick";
    while (walker.nextNode()) {
        const { textContent, parentElement: element } = walker.currentNode;
        if (!/\d\.\d/.test(textContent) || element.closest(skipped) || !element.checkVisibility()) continue;
        found.push([element.closest("[class]").className, textContent.trim()]);
    }
    return found;
}"""
NUMBERS = r"""() => [...document.querySelectorAll("main .opens, #live-panels .opens")].map((element) => {
    const { address, pass, minus } = element.closest("[data-address]").dataset;
    return [element.textContent, address, JSON.parse(pass ?? "{}"), minus ? JSON.parse(minus) : null];
})"""


@pytest.fixture(scope="module")
def server(start_server):
    return start_server("primer", "--memory", "0.05")


@pytest.fixture(scope="module")
def model():
    return foretell.load("primer")


@pytest.fixture(scope="module")
def whole_page(server, browser):
    """The live page with all its parts: a changed pass, a comparison, and a map of patches."""
    context = browser.new_context()
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{server.address}/{link(CHANGE, second=OTHER, otherText=OTHER)}")
    settled(page)
    page.evaluate("window.print = () => {}")
    page.locator("#export details").evaluate("details => details.open = true")
    click(page, "Print")  # reads all parts
    click(page, "Compute the map")
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    settled(page)
    page.locator("#compared tbody tr").first.wait_for()
    page.locator("#change-effect tbody tr").first.wait_for()
    yield page
    context.close()
    assert complaints == []


def opened(page: Any, locator: Any) -> str:
    """The words of the panel of a number, after a click on it."""
    click_on(locator)
    return page.locator("#value").inner_text()


def value_in(page: Any) -> float:
    return float(page.locator("#value dd").first.inner_text().replace("−", "-"))


def test_every_number_opens_or_chooses_a_head_or_a_patch(whole_page):
    heads = ("quiet", "reading")  # cells choose a head, whose address is next to its number
    rest = {name: words for name, words in whole_page.evaluate(UNOPENED) if name not in ("cell", "swatch", *heads)}
    assert {words for words in rest.values() if "Weights below 0.005" not in words} == {"8.0000"}  # the root of a size
    assert whole_page.locator(".opens").count() > 500


def test_a_number_is_the_one_that_opens(whole_page, server):
    asked = {"model": "primer", "text": TEXT, "change": CHANGE}

    def stored(address, words="", headWidth=0, **fields):
        return server.ask("/explore/value", **{**asked, **fields}, address=address)["stored"]

    numbers = [each for each in whole_page.evaluate(NUMBERS) if re.fullmatch(r"[+−]?\d+\.\d+", each[0])]
    kinds = {address.partition("[")[0] for _, address, *_ in numbers}
    assert {
        "loss.mean",
        "trunk.blocks.0.lens.entropy",
        f"{CORE}.weights.terms",
        "trunk.blocks.0.neurons.vector_norm",
    } <= kinds
    for text, address, fields, minus in random.Random(0).sample(numbers, SAMPLE):
        value = stored(address, **fields) - (stored(**minus) if minus else 0)
        digits = len(text.partition(".")[2])
        assert float(text.replace("−", "-")) == pytest.approx(value, abs=0.501 * 10**-digits + 2e-6), address


@torch.inference_mode()
def test_a_difference_opens_into_both_passes(whole_page, model):
    row = whole_page.locator("#change-effect tbody tr").first
    address = row.locator("td").first.get_attribute("data-address")
    token = int(address.rstrip("]").rpartition(",")[2])
    with foretell.Trace(model, replace={CORE: without_heads(1)}):
        after = model.log_probabilities(model(model.encode(TEXT))[0, LAST]).exp()[token]
    before = model.log_probabilities(model(model.encode(TEXT))[0, LAST]).exp()[token]
    assert "a − b" in opened(whole_page, row.locator(".opens").nth(2))
    assert value_in(whole_page) == pytest.approx(float(after - before), abs=1e-6)
    sources = whole_page.locator("#value .sources .opens")
    assert "in the original pass" in opened(whole_page, sources.nth(1))
    assert value_in(whole_page) == pytest.approx(float(before), rel=1e-6)
    logit = whole_page.locator("#value tr.chosen .opens").first  # an operand is of the same pass
    assert "in the original pass" in opened(whole_page, logit)
    assert value_in(whole_page) == pytest.approx(float(model(model.encode(TEXT))[0, LAST, token]), rel=1e-6)
    click(whole_page, f"{address} − the same", "#value-path")
    opened(whole_page, sources.nth(0))
    assert "in the original pass" not in whole_page.locator("#value-body").inner_text()
    assert value_in(whole_page) == pytest.approx(float(after), rel=1e-6)


@torch.inference_mode()
def test_a_patched_number_and_one_of_another_text_open(whole_page, model):
    patches = whole_page.locator("#patch-map details tbody tr").filter(has_text="after layer 0").last
    with foretell.Trace(model, "trunk.blocks.0") as other:
        model(model.encode(OTHER))

    def patched(stream):
        stream = stream.clone()
        stream[:, LAST] = other["trunk.blocks.0"][:, LAST]
        return stream

    with foretell.Trace(model, replace={CORE: without_heads(1), "trunk.blocks.0": patched}):
        logprobs = model.log_probabilities(model(model.encode(TEXT))[0, LAST])
    address = patches.locator("td").nth(1).get_attribute("data-address")
    assert "with the patch" in opened(whole_page, patches.locator(".opens").first)
    token = int(address.rstrip("]").rpartition(",")[2])
    assert value_in(whole_page) == pytest.approx(float(logprobs[token]), rel=1e-5)
    there = whole_page.locator("#compared table").first.locator("tbody tr").first.locator(".opens").nth(1)
    shown = there.inner_text()
    assert "in the other pass, position 9 'ile'" in opened(whole_page, there)
    assert f"{value_in(whole_page):.4f}" == shown


def test_probabilities_after_filters_and_their_sum_open(open_live, model):
    settings = "temperature=0.7,top_k=5,top_p=0.9,min_p=0.1"
    page = open_live(link() + "&" + settings.replace(",", "&"))
    rows = page.locator("#next-table tbody tr")
    assert page.locator("#next-table .opens").count() == 2 * rows.count()
    for row in (0, 1, 9):  # the last one is excluded
        before, after = rows.nth(row).locator("td.number").all()
        address = after.get_attribute("data-address")
        assert address.startswith(f"probabilities.filtered({settings})[{LAST},")
        assert before.get_attribute("data-address") == address.replace(f".filtered({settings})", "")
        stored = explain_value(model, TEXT, address).stored
        shown = after.inner_text()
        assert "The value follows from its operands" in opened(page, after.locator(".opens"))
        assert shown == f"{value_in(page):.4f}" and value_in(page) == pytest.approx(stored, rel=1e-6)
    kept = page.locator("#next-summary .opens")
    shown, address = kept.inner_text(), kept.locator("..").get_attribute("data-address")
    assert "probabilities are without filters" in opened(page, kept)
    assert shown == f"{value_in(page):.4f}" == f"{explain_value(model, TEXT, address).stored:.4f}"
    opened(page, page.locator("#value tbody tr").first.locator(".opens").first)
    assert page.locator("#value code").inner_text().startswith(f"probabilities[{LAST},")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Reset to the model").click()
    assert page.locator("#next-summary .opens").count() == 0


def test_the_sum_of_a_listing_opens_into_its_addends(open_live, model):
    page = open_live(link())
    page.locator("#address").evaluate("() => document.querySelector('#value').hidden = false")
    for address in (f"probabilities[{LAST},3]", f"{CORE}.scores[1,{LAST},2]", f"trunk.blocks.1.vector_norm[{LAST}]"):
        open_address(page, address)
        count, steps = (
            page.locator("#value .sum .opens").count(),
            explain_value(model, TEXT, address).to_json()["steps"],
        )
        sums = [(name, value) for step in steps for name, value in step.get("sums", {}).items()]
        assert count == len(sums) > 0
        for index, (name, value) in enumerate(sums):
            shown = page.locator("#value .sum .opens").nth(index)
            words = shown.inner_text()
            assert f"the sum of {name}" in opened(page, shown)
            assert page.locator("#value dd").first.inner_text() == words
            assert value_in(page) == pytest.approx(value, rel=1e-6)
            assert "does not follow" not in page.locator("#value-body").inner_text()
            assert page.locator("#value-body .sum").count() == 0 and page.locator("#value-body tr").count() > 5
            click(page, "‹ Back", "#value-path")


def test_a_small_difference_is_shown_with_enough_digits_to_subtract(open_live):
    page = open_live(link())
    show_part(page, "#contributions", "#contribution-sums tbody tr")
    opened(page, page.locator("#contribution-sums tr").filter(has_text="Remainder").locator(".opens"))
    formula = page.locator("#value .formula").inner_text().replace("−", "-")
    [numbers] = re.findall(r"^a - b = (\S+) - (\S+) = (\S+)$", formula)
    a, b, difference = map(Decimal, numbers)
    assert difference and abs(a - b - difference) < abs(difference) / 50
    facts = [Decimal(text.replace("−", "-")) for text in page.locator("#value dd").all_inner_texts()]
    assert abs(facts[0] - facts[1] - facts[2]) < abs(facts[2]) / 10


def test_the_numbers_of_a_column_have_one_scale(open_live):
    page = open_live(link())
    page.locator("#address").evaluate("() => document.querySelector('#value').hidden = false")
    open_address(page, f"head[{LAST},3]")
    for column in (1, 2, 3):
        cells = page.locator(f"#value tbody tr td.number:nth-child({column + 1})").all_inner_texts()
        assert len({len(text.partition(".")[2]) for text in cells if "e" not in text and text != "0"}) == 1
    products = page.locator("#value tbody tr td:last-child").all_inner_texts()
    *_, total = (Decimal(text.replace("−", "-")) for text in products if text)
    assert abs(float(total) - value_in(page)) < 1e-5


@torch.inference_mode()
def test_a_product_of_a_listing_opens_into_its_factors(open_live, model):
    page = open_live(link())
    page.locator("#address").evaluate("() => document.querySelector('#value').hidden = false")
    for address, column in (
        (f"head[{LAST},3]", "w · x"),
        (f"{CORE}[1,{LAST},2]", "weight · value"),
        (f"trunk.blocks.1.vector_norm[{LAST}]", "x²"),
        (f"trunk.blocks.0.feedforward[{LAST},7]", "w · x"),  # x is a product, too
    ):
        open_address(page, address)
        table = page.locator("#value table").filter(has=page.get_by_role("columnheader", name=column, exact=True))
        names = table.locator("thead th").all_inner_texts()
        row = table.locator("tbody tr").nth(1).locator("td")
        shown = row.nth(names.index(column)).inner_text()
        assert "a product" in opened(page, row.nth(names.index(column)).locator(".opens"))
        digits = len(shown.partition(".")[2])
        number = float(shown.replace("−", "-"))  # of a product in float32
        assert value_in(page) == pytest.approx(number, abs=0.5 * 10**-digits + 2**-23 * abs(number))
        value, sources = 1.0, page.locator("#value .sources .opens")
        while " · " in sources.nth(1).inner_text():
            value *= explain_value(model, TEXT, sources.first.inner_text()).stored
            assert "a product" in opened(page, sources.nth(1))
        for index in (0, 1):
            value *= explain_value(model, TEXT, sources.nth(index).inner_text()).stored
        click_on(page.locator("#value-path li").nth(1).locator("button, code").first)
        assert value_in(page) == pytest.approx(value, rel=1e-6)


def test_the_numbers_of_a_formula_open_with_the_keyboard(whole_page):
    numbers = whole_page.locator("#formulas .card").first.locator(".opens")
    assert numbers.count() > 20
    assert whole_page.locator("#formulas .card").first.locator(".opens[tabindex='0']").count() == 1
    numbers.first.focus()
    whole_page.keyboard.press("ArrowRight")
    whole_page.keyboard.press("Enter")
    settled(whole_page)
    assert whole_page.locator("#value code").inner_text() == f"{CORE}.query[0,{LAST},1]"

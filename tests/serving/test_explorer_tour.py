"""The live page's tour, its accessibility at four widths, and its print."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from foretell.insight.explain.explain_address import explain_value
from foretell.insight.trace import Trace
from tests.serving.conftest import click_on, scroll_through, settled

TEXT = "some words"
STEPS = 10
CHOICE = f"#text={TEXT}&layer=1&head=1&token=6"


@pytest.fixture(scope="module")
def numbers(model) -> dict[int, list[str]]:
    """Numbers that the steps must show, computed with the library: of layer 1, head 1 and the seventh token."""
    ids, core = torch.tensor([model.encode_fitting(TEXT)]), "trunk.blocks.1.attention.core"
    names = [f"{core}.weights", f"{core}.scores", "embed", "trunk.blocks.1"]
    with torch.inference_mode(), Trace(model.decoder, names) as trace:
        logits = model.decoder(ids)[0]
    weights, scores = trace[f"{core}.weights"][0, :, 6], trace[f"{core}.scores"][0, 1, 6]
    head, key = divmod(int(weights.argmax()), weights.shape[1])
    own_key = int(weights[1].argmax())
    here = logits[6].softmax(-1)
    norms = [trace[name][0, 6].norm() for name in ("embed", "trunk.blocks.1")]
    return {
        1: [f"{len(TEXT)} tokens", f"id {ids[0, 6]}"],
        2: [f"probability {logits[-1].softmax(-1).max():.4f}"],
        3: [f"head {head}: {weights[head, key]:.4f}", f"({key})"],
        4: [f"{weights[1, 6]:.4f} to itself"],
        5: [f"numbers: {scores[own_key]:.3f}"[:-2], f"the weight is {weights[1, own_key]:.4f}"],
        7: [f"{norm:.4f}" for norm in norms],
        8: [f"probability {here.max():.4f}"],
        9: [f"is {logits[6].max():.4f}"],
    }


def words(page: Any) -> str:
    settled(page)
    return page.locator("#tour [aria-live]:not(:has-text('being computed'))").inner_text().replace("−", "-")


def test_ten_steps_have_the_numbers_of_the_pass(open_live, numbers):
    page = open_live(CHOICE)
    page.get_by_role("button", name="Tour").click()
    for step in range(1, STEPS + 1):
        page.locator(f"#tour-title:has-text('Tour {step} of {STEPS}')").wait_for()
        text = words(page)
        assert all(number in text for number in numbers.get(step, [])), (step, text)
        page.keyboard.press("ArrowRight")


def test_the_card_of_every_step_stays_in_view_while_parts_above_it_arrive(open_live):
    page = open_live(CHOICE, viewport={"width": 400, "height": 900})
    page.locator("#tour-button").click()
    for _ in range(STEPS):
        settled(page)
        page.wait_for_function("() => document.querySelector('.toured').getBoundingClientRect().top < 200")
        page.keyboard.press("ArrowRight")


def test_the_numbers_of_every_step_open(open_live, model):
    page = open_live(CHOICE)
    page.get_by_role("button", name="Tour").click()
    counts = []
    for step in range(1, STEPS + 1):
        page.locator(f"#tour-title:has-text('Tour {step} of {STEPS}')").wait_for()
        sentences = words(page)
        numbers = page.locator("#tour-words .opens")
        counts.append(numbers.count())
        assert counts[-1] == len(re.findall(r"\d\.\d", sentences))
        for number in numbers.all():
            shown = number.inner_text().replace("−", "-")
            click_on(number)
            value = page.locator("#value dd").first.inner_text().replace("−", "-")
            assert float(shown) == pytest.approx(float(value), abs=0.501e-4), sentences
            if not number.locator("..").get_attribute("data-minus"):
                address = number.locator("..").get_attribute("data-address")
                assert explain_value(model, TEXT, address).stored == pytest.approx(float(value), rel=1e-5, abs=1e-6)
            page.keyboard.press("Escape")  # closes the number, and the focus is in the tour again
        page.keyboard.press("ArrowRight")
    assert counts == [0, 2, 1, 1, 3, 2, 3, 2, 3, 0]


def test_a_tour_follows_an_edited_text(open_live):
    page = open_live(CHOICE)
    page.get_by_role("button", name="Tour").click()
    assert f"{len(TEXT)} tokens" in words(page)
    page.locator("#text").fill(TEXT + "!")
    page.locator(f"#tour:has-text('{len(TEXT) + 1} tokens')").wait_for()


def test_the_tour_is_used_with_the_keyboard_and_gives_the_focus_back(open_live):
    page = open_live(CHOICE)
    page.locator("#tour-button").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "tour"
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.inner_text("#tour-title").startswith("Tour 2 of 10")
    assert page.locator(".toured").count() == 1
    assert page.locator("#token-select").input_value() == "6"  # the arrows moved the tour, not the token
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "tour-button"
    assert page.locator("#tour").is_hidden() and page.locator(".toured").count() == 0


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_the_live_page_is_accessible_and_fits_every_width(open_live, accessibility_problems, scheme):
    page = open_live(CHOICE, color_scheme=scheme)
    page.locator("#tour-button").click()
    scroll_through(page)
    for width in (390, 800, 1360, 3840):
        page.set_viewport_size({"width": width, "height": 900})
        settled(page)
        assert accessibility_problems(page) == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width


NAME = "e => `${e.closest('section, nav, aside')?.id}: ${e.id || e.title || e.ariaLabel || e.textContent}`"
CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex]"


def test_the_focus_reaches_every_control_and_is_visible(open_live):
    page = open_live(CHOICE)
    reached, hidden = set(), []
    for _ in range(600):
        page.keyboard.press("Tab")
        settled(page)  # the part that has the focus and the next one are shown
        show = f"(e => [e.tagName, ({NAME})(e), getComputedStyle(e).outlineStyle])(document.activeElement)"
        tag, name, outline = page.evaluate(show)
        if tag == "BODY":  # after the last control
            break
        reached.add(name)
        hidden += [name] if outline == "none" else []
    assert hidden == []
    scroll_through(page)
    wanted = "e => e.tabIndex >= 0 && !e.disabled && e.checkVisibility({ visibilityProperty: true })"
    controls = page.evaluate(f"[...document.querySelectorAll('{CONTROLS}')].filter({wanted}).map({NAME})")
    assert len(controls) > 80 and set(controls) - reached == set()


def test_a_printed_page_has_no_editor(open_live):
    page = open_live(CHOICE)
    page.locator("#tour-button").click()
    page.emulate_media(media="print")
    assert page.locator("#text").is_hidden() and page.locator("#tour").is_hidden()
    assert page.locator("#tokens").is_visible()

"""A printed page: nothing covered or cut, light colors, bars without background graphics."""

from __future__ import annotations

import re
import zlib

import pytest

from foretell.insight.page.write_page import write_page

PAPER_WIDTH = 718  # CSS pixels between the margins of A4
# Scripts do not run between the layout of the screen and that of the paper
FREEZE = """
    const Observer = ResizeObserver;
    window.ResizeObserver = class extends Observer {
        constructor(notify) { super((...entries) => window.frozen || notify(...entries)); }
    };"""
RUNS_OFF = """(width) => [...document.querySelectorAll("body *")]
    .filter((element) => element.checkVisibility() && !element.closest(".sr, caption.sr"))
    .filter((element) => element.getBoundingClientRect().right > width + 1)
    .map((element) => element.outerHTML.slice(0, 80))"""
LEAVES_ITS_CARD = """() => [...document.querySelectorAll(".card")].flatMap((card) => {
    const around = card.getBoundingClientRect();
    return [...card.querySelectorAll("table, canvas, svg, math, p")].filter((element) => {
        const inside = element.getBoundingClientRect();
        return element.checkVisibility() && (inside.bottom > around.bottom + 1 || inside.right > around.right + 1);
    }).map((element) => element.outerHTML.slice(0, 80));
})"""
INSIDE_SCROLL_REGIONS = """() => [...document.querySelectorAll(".scroll, .grid-scroll, .tokens")]
    .filter((element) => element.checkVisibility() && getComputedStyle(element).overflowY !== "visible")
    .map((element) => element.outerHTML.slice(0, 80))"""
BLUE_OF_BARS = rb"\.184\d* \.333\d* \.643\d* rg"


@pytest.fixture
def screen(browser, primer, tmp_path):
    """The primer's page on a wide dark screen, whose scripts can be kept from following the width."""
    model, text = primer
    write_page(model, text, tmp_path / "page.html")
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark", offline=True)
    context.add_init_script(FREEZE)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("html[data-complete]")
    yield page
    context.close()


@pytest.fixture
def printed(screen):
    """The page in the layout of the paper."""
    screen.evaluate("window.frozen = true")
    screen.emulate_media(media="print")
    screen.set_viewport_size({"width": PAPER_WIDTH, "height": 1000})
    return screen


def test_nothing_runs_off_the_paper_or_covers_another_card(printed):
    assert printed.evaluate(RUNS_OFF, PAPER_WIDTH) == []
    assert printed.evaluate(LEAVES_ITS_CARD) == []
    assert printed.evaluate(INSIDE_SCROLL_REGIONS) == []


def test_a_printed_page_is_light_and_the_screen_is_dark_again_afterwards(printed):
    background = "getComputedStyle(document.body).backgroundColor"
    printed.wait_for_selector("html[data-theme=light]")  # the maps are painted in light colors, too
    assert printed.evaluate(background) == "rgb(255, 255, 255)"
    printed.emulate_media(media="screen")
    printed.wait_for_selector("html:not([data-theme])")
    assert printed.evaluate(background) == "rgb(20, 23, 27)"


def test_bars_are_printed_without_background_graphics(screen):
    document = screen.pdf(format="A4", print_background=False)
    streams = [
        zlib.decompress(found) for found in re.findall(rb"FlateDecode.*?stream\r?\n(.*?)endstream", document, re.DOTALL)
    ]
    assert len(re.findall(BLUE_OF_BARS, b"".join(streams))) > 10


def test_a_heading_stays_with_what_follows_it(printed):
    breaks = (
        "() => [...document.querySelectorAll('section > h2, .lead')].map((each) => getComputedStyle(each).breakAfter)"
    )
    assert set(printed.evaluate(breaks)) == {"avoid"}

"""In a real browser: pointer, keys, URL, color schemes, narrow screens, captions, no network, no errors."""

from __future__ import annotations

import re

import pytest

from foretell.insight.page.write_page import write_page

TEXT = "abcdefghij"
UNTITLED = "() => [...document.querySelectorAll('table')].filter((table) => !table.caption?.textContent.trim()).length"


@pytest.fixture(scope="module")
def page_file(make_model, tmp_path_factory):
    """The page of one small model."""
    path = tmp_path_factory.mktemp("use") / "page.html"
    write_page(make_model("gpt2"), TEXT, path)
    return path


def test_a_text_of_one_token_has_a_page(make_model, open_page):
    opened = open_page(make_model("gpt2"), "a")
    assert opened.complaints == []
    assert opened.text("#reading").endswith("1.0000")


def test_a_damaged_page_says_so(page_file, open_page, tmp_path):
    path = tmp_path / "damaged.html"
    path.write_text(re.sub(r'(id="logits">).{20}', r"\1", page_file.read_text()))
    opened = open_page.file(path, wait=False)
    opened.page.wait_for_selector("#trouble:not([hidden])")
    assert "This page is damaged" in opened.text("#trouble")
    assert len(opened.complaints) == 1


def test_a_browser_without_decompression_shows_a_notice(page_file, browser):
    context = browser.new_context()
    context.add_init_script("delete window.DecompressionStream")
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.wait_for_selector("#trouble:not([hidden])")
    assert "DecompressionStream" in page.inner_text("#trouble")
    context.close()


def test_the_arrow_keys_choose_a_token_and_the_url_keeps_it(page_file, open_page):
    opened = open_page.file(page_file)
    opened.page.locator("#tokens [aria-checked=true]").focus()
    opened.page.keyboard.press("ArrowLeft")
    opened.page.keyboard.press("ArrowLeft")
    assert "token=3" in opened.page.url  # a file opens on a token in the middle
    opened.page.keyboard.press("Home")
    assert "token=0" in opened.page.url
    assert opened.page.locator(":focus").inner_text() == "a"
    assert opened.page.locator("#token-select").input_value() == "0"


def test_the_arrow_keys_choose_a_token_before_anything_has_the_focus(page_file, open_page):
    opened = open_page.file(page_file)
    opened.page.keyboard.press("ArrowLeft")
    assert "token=4" in opened.page.url
    opened.page.keyboard.press("ArrowRight")
    assert "token=5" in opened.page.url
    opened.page.locator("#sampling summary").click()
    opened.page.locator("#temperature").focus()
    opened.page.keyboard.press("ArrowLeft")
    assert "token=5" in opened.page.url


def test_a_link_selects_its_token_layer_and_head(page_file, open_page):
    opened = open_page.file(page_file, "#token=4&key=2&layer=1&head=1")
    assert opened.page.locator("#tokens [aria-checked=true]").inner_text() == "e"
    assert "Layer 1, head 1" in opened.text("#head-title")
    assert "“e” (4) → “c” (2)" in opened.text("#reading")


def test_an_invalid_url_is_ignored(page_file, open_page):
    opened = open_page.file(page_file)
    for choice in ("token=99&layer=-1&head=x", "", "nonsense", "token=1e9&key=0x1"):
        opened.ask("([choice]) => { location.hash = choice; }", choice)
        opened.wait_for_frames()
    assert opened.complaints == []


def test_a_link_to_what_the_pass_does_not_have_says_so(page_file, open_page):
    opened = open_page.file(page_file, "#token=99&layer=1&head=-1")
    words = "The link names token 99, head -1, which this pass does not have. The page shows token 9, head 0."
    assert opened.text("#trouble") == words
    opened.ask("() => { location.hash = 'token=3&layer=1'; }")
    opened.page.locator("#trouble").wait_for(state="hidden")


@pytest.mark.parametrize("link", [pytest.param("#lens-section", marks=pytest.mark.long), "#token=3&stream-section="])
def test_a_link_to_a_section_shows_it_after_a_reload_too(page_file, open_page, link):
    opened, section = open_page.file(page_file, link), link.strip("=").rpartition("#")[2].rpartition("&")[2]
    for _ in range(2):
        opened.wait_for_frames()
        assert 0 <= opened.page.locator(f"#{section}").bounding_box()["y"] < 200
        opened.page.evaluate("window.scrollTo(0, 0)")
        opened.page.reload()
        opened.wait()


def test_a_link_sets_the_settings_of_sampling_and_reports_wrong_ones(page_file, open_page):
    opened = open_page.file(page_file, "#temperature=0.5&top_k=0")
    assert opened.page.locator("#temperature-number").input_value() == "0.5"
    assert opened.text("#trouble") == "The link names top_k 0, which sampling does not allow. The page uses top_k 1."
    opened.ask("() => { location.hash = 'temperature=-1&token=3'; }")
    opened.page.wait_for_selector("#trouble:has-text('temperature -1')")
    assert opened.page.locator("#temperature-number").input_value() == "0"
    assert opened.page.locator("#top-k-number").input_value() == opened.page.locator("#top-k-number").get_attribute(
        "max"
    )
    assert opened.page.locator("#token-select").input_value() == "3"


def test_the_link_that_skips_to_the_text_keeps_the_state(page_file, open_page):
    opened = open_page.file(page_file, "#token=4&key=2&layer=1&head=1")
    opened.page.locator(".skip").focus()
    opened.page.keyboard.press("Enter")
    opened.wait_for_frames()
    assert opened.page.locator("#token-select").input_value() == "4" and "token=4&key=2" in opened.page.url
    assert opened.page.locator("#layer-select").input_value() == "1"
    opened.page.keyboard.press("Tab")
    assert opened.page.locator("#text-section :focus").count() == 1


def test_the_small_maps_are_a_grid_of_buttons(page_file, open_page):
    opened = open_page.file(page_file)
    opened.page.locator(".thumb[aria-pressed=true]").focus()
    opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("ArrowDown")
    assert opened.page.locator(":focus").get_attribute("aria-label") == "layer 1, head 1"
    assert opened.page.locator("#layer-select").input_value() == "1"


def test_the_large_map_can_be_read_with_the_keys(page_file, open_page):
    opened = open_page.file(page_file, "#token=5&key=3")
    opened.page.locator("#map-canvas").focus()
    opened.page.keyboard.press("ArrowUp")
    opened.page.keyboard.press("ArrowRight")
    assert opened.text("#reading").startswith("“e” (4) → “e” (4): ")
    opened.page.keyboard.press("Enter")
    assert "token=4&key=4" in opened.page.url


def test_arcs_and_tint_follow_the_pointer(page_file, open_page):
    opened = open_page.file(page_file)
    opened.page.locator("#tokens [data-position='3']").hover()
    assert opened.text("#arcs-title").startswith("Arcs from “d” (3)")
    assert 0 < opened.page.locator(".arcs .lines path, .arcs .lines circle").count() <= 4
    opened.page.locator("h1").hover()
    assert opened.text("#arcs-title").startswith("Arcs from “f” (5)")


def test_chosen_colors_replace_the_systems_and_are_kept_where_the_browser_stores_them(page_file, open_page):
    opened = open_page.file(page_file, color_scheme="light")
    light = opened.ask("() => getComputedStyle(document.body).backgroundColor")
    opened.page.locator("#theme").select_option("dark")
    assert opened.ask("() => getComputedStyle(document.body).backgroundColor") != light
    opened.page.reload()
    opened.wait()
    assert opened.page.locator("#theme").input_value() == opened.ask("() => document.documentElement.dataset.theme")
    assert opened.page.locator("#theme").input_value() == "dark"
    refuses = (
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('', 'SecurityError'); } })"
    )
    opened.page.add_init_script(refuses)
    opened.page.reload()
    opened.wait()
    assert opened.page.locator("#theme").input_value() == "auto"
    opened.page.locator("#theme").select_option("dark")
    assert opened.ask("() => document.documentElement.dataset.theme") == "dark"
    assert opened.complaints == []


def test_no_formula_is_cut_on_a_laptops_screen(primer_page):
    primer_page.page.set_viewport_size({"width": 1024, "height": 800})
    cut = "() => [...document.querySelectorAll('.scroll')].filter((part) => part.scrollWidth > part.clientWidth).length"
    assert primer_page.ask(cut) == 0


def test_the_page_says_what_it_shows_and_what_it_does_not(primer_page):
    footer = primer_page.text("footer")
    assert "This page shows the tokens" in footer
    assert "It does not show the model’s weights" in footer
    assert "Nothing was left out" not in footer


def test_the_page_fits_every_screen_width(primer_page):
    for width in (360, 768, 1920):
        primer_page.page.set_viewport_size({"width": width, "height": 800})
        primer_page.wait_for_frames()
        assert primer_page.ask("() => document.documentElement.scrollWidth") <= width


def test_tables_have_captions(primer_page):
    assert primer_page.ask(UNTITLED) == 0


LEFT_EDGES = """() => [...document.querySelectorAll("main > .first, main > section:not([hidden])")].map((section) => {
    const { left, top } = section.getBoundingClientRect();
    return [section.id || "first", Math.round(left), Math.round(top + scrollY)];
})"""


@pytest.mark.parametrize(("width", "columns"), [(1920, 1), (2560, 2), (3840, 2)])
def test_a_wide_screen_has_two_columns_in_the_order_of_reading(open_page, primer, width, columns):
    page = open_page(*primer, viewport={"width": width, "height": 1200}).page
    places = page.evaluate(LEFT_EDGES)
    lefts = list(dict.fromkeys(left for _, left, _ in places))
    assert lefts == sorted(lefts) and len(lefts) == columns
    of_columns = [[place for place in places if place[1] == left] for left in lefts]
    assert [place for column in of_columns for place in column] == places
    assert all(tops == sorted(tops) for tops in ([top for *_, top in column] for column in of_columns))
    if columns == 2:
        assert [column[0][0] for column in of_columns] == ["first", "feedforward-section"]
        assert of_columns[0][0][2] == of_columns[1][0][2]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


CUT = """() => [
    ...[...document.querySelectorAll(".vector-labels span")].filter((each) => each.scrollWidth > each.clientWidth),
    ...[...document.querySelectorAll("#sizes .scroll")].filter((each) => each.scrollHeight > each.clientHeight),
].map((each) => each.textContent)"""


@pytest.mark.parametrize("width", [1280, 420])
def test_labels_of_vectors_and_rows_of_norms_are_not_cut(primer, open_page, width):
    opened = open_page(*primer, viewport={"width": width, "height": 900})
    assert opened.ask(CUT) == []
    labels, canvas = opened.page.locator("#vectors .vector-labels span"), opened.page.locator("#vectors canvas")
    canvas.scroll_into_view_if_needed()
    box = labels.nth(2).bounding_box()
    assert canvas.bounding_box()["height"] == box["height"] * labels.count()
    opened.page.mouse.move(canvas.bounding_box()["x"] + 5, box["y"] + box["height"] - 3)
    assert opened.text("#vectors-reading").startswith(f"{labels.nth(2).inner_text()}, dimension ")

"""The live page: its files and sections, and the page in a browser that edits, continues and follows links."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

import pytest
import torch

import foretell
from foretell.insight.page.page_pass import PageModel
from foretell.insight.page.sections import all_sections, find_sections, needed_values
from foretell.serving.status import live_files
from tests.serving.conftest import edit, error_of, scroll_through, scroll_to, settled

TEXT = "some words"
HOSTILE = "</script><img src=x onerror=document.title='run'>"


@pytest.fixture(scope="module")
def server(start_server, toy_model):
    return start_server(str(toy_model), "--memory", "0.05")


def lines(server: Any, **body: Any) -> list[dict[str, Any]]:
    """The lines of POST /explore about the pass; logits may come before it."""
    answer = server.post("/explore", **body)
    assert answer.status_code == 200, answer.text
    return [each for line in answer.text.splitlines() if "next" not in (each := json.loads(line))]


# --- the routes ------------------------------------------------------------------------------------------------------


def test_the_page_and_its_files_have_a_strict_policy(server):
    for path in ("/", "/page/live/live.js", "/page/style.css", "/page/main.js"):
        answer = server.client.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';") and "unsafe" not in policy
    document = server.client.get("/").text
    assert "<script>" not in document
    scripts = re.findall('<link rel="modulepreload" href="page/(.+?)">', document)
    assert len(scripts) > 30 and set(scripts) == {name for name in live_files() if name.endswith(".js")}


@pytest.mark.parametrize("path", ["/page/nothing.js", "/page/../write_page.py", "/page/%2e%2e/write_page.py", "/page/"])
def test_no_other_file_is_served(server, path):
    answer = server.client.get(path)
    assert answer.status_code == 404 or "<!doctype html>" in answer.text


def test_sections_are_those_of_a_pass_with_the_library(server, model):
    page = PageModel.of(model)
    sections = all_sections(page)
    by_position = ["lens.at.3", "streams.0", "values.at.1.2"]
    names = [*(name for name in sections if name != "vocabulary"), *by_position]
    first, *rest = lines(server, text=TEXT, appended=[33], sections=names)
    assert [token["id"] for token in first["pass"]["tokens"]] == [*model.encode_fitting(TEXT), 33]
    traced = page.record(
        [*model.encode_fitting(TEXT), 33], TEXT, needed_values(page, find_sections(page, sections, names).values())
    )
    for name, line in zip(names, rest, strict=True):
        family, index = find_sections(page, sections, [name])[name]
        expected = family.pack_live(index, family.content(traced, index))
        assert expected.kind not in ("rounded16", "rounded32") or name.startswith("thumbs")  # all bits
        assert line["section"] == {**asdict(expected), "shape": list(expected.shape)}, name


def test_the_model_is_described_once_and_not_with_each_pass(server, open_live):
    [first] = lines(server, text=TEXT)
    assert set(first["pass"]) == {"model", "text", "tokens", "lensFrom"}
    page = open_live(f"#text={TEXT}")
    asked = []
    page.on("request", lambda request: asked.append(request.post_data or ""))
    edit(page, TEXT + "!")
    assert asked and not any(name in body for body in asked for name in ("outline", "vocabulary"))


def test_a_change_applies_to_the_pass(server):
    off = {"value": "trunk.blocks.0.attention", "scale": 0}
    plain, changed = (lines(server, text=TEXT, sections=["logits"], change=change)[1] for change in ([], [off]))
    assert plain != changed


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text": ""}, "text"),
        ({"text": "x" * 1000}, "context"),
        ({"text": TEXT, "appended": [99_999]}, "appended: 99999 is not a token"),
        ({"text": TEXT, "sections": ["../../etc"]}, "has no section '../../etc'; `outline` lists them"),
        ({"text": TEXT, "sections": ["lens.at.10"]}, "no position 10"),
        ({"text": TEXT, "sections": ["values.at.9.0"]}, "has no section"),
        ({"text": TEXT, "sections": ["streams.-1"]}, "has no section"),
        ({"text": TEXT, "change": [{"value": "nothing", "scale": 0}]}, "nothing"),
        ({"text": TEXT, "model": "other"}, "no model is named"),
    ],
)
def test_a_request_that_cannot_be_answered_gets_one_line(server, body, words):
    assert words in error_of(server.post("/explore", **body), 404 if "model" in body else 400)["message"]


# --- the page in a browser -------------------------------------------------------------------------------------------


def wait_for_tokens(page: Any, count: int) -> None:
    page.wait_for_selector(f"#tokens:not(:has(.token:nth-child({count + 1}))) .token:nth-child({count})")
    settled(page)


def next_rows(page: Any) -> list[str]:
    return page.locator("#next-table tbody .piece").all_inner_texts()


def test_an_edited_text_is_followed(open_live, model):
    page = open_live()
    edit(page, TEXT)
    logits = PageModel.of(model).record(model.encode_fitting(TEXT), TEXT, []).last_logits
    shown = page.evaluate("import('/page/main.js').then(({ shown }) => Array.from(shown.data.get('logits').whole))")
    assert torch.equal(torch.tensor(shown), logits)
    expected = foretell.next_tokens(model, TEXT, top=10)[0].tokens
    assert page.locator("#next-table tbody .number").first.inner_text() == f"{expected[0].probability:.4f}"
    assert page.locator("#tokens .token").count() == len(TEXT)
    page.locator("#tokens .token").first.click()
    page.locator("#here tbody tr").first.wait_for()  # the lens of one position


def test_a_click_continues_and_the_tree_leads_back(open_live):
    page = open_live(f"#text={TEXT}")
    before = next_rows(page)
    page.locator("#next-table .link").nth(1).click()
    wait_for_tokens(page, len(TEXT) + 1)
    page.get_by_text("Remove the last").click()
    wait_for_tokens(page, len(TEXT))
    assert next_rows(page) == before
    page.get_by_text("Add the most probable token").click()
    wait_for_tokens(page, len(TEXT) + 1)
    assert page.locator(".branches .token").count() == 2
    for count in (0, 1, 0):  # each step is an entry of the history
        page.go_back()
        wait_for_tokens(page, len(TEXT) + count)


def test_a_link_to_what_the_pass_does_not_have_says_so_once(open_live):
    page = open_live(f"#text={TEXT}&layer=7&head=1&token=99")
    words = "The link names token 99, layer 7, which this pass does not have. The page shows token 9, layer 1."
    assert page.locator("#trouble").inner_text() == words
    page.locator("#text").fill(TEXT[:-3])
    wait_for_tokens(page, len(TEXT) - 3)
    assert page.locator("#trouble").is_hidden()  # a shorter text is not a link


def test_a_link_to_a_section_shows_it_after_a_reload_too(open_live):
    page = open_live(f"#text={TEXT}&stream-section=")
    for _ in range(2):
        page.wait_for_selector("#sizes table")
        settled(page)
        assert 0 <= page.locator("#stream-section").bounding_box()["y"] < 200
        page.mouse.wheel(0, -9000)
        page.reload()
        settled(page)


def test_an_empty_text_is_refused_in_a_sentence(open_live):
    page = open_live(f"#text={TEXT}")
    page.locator("#text").fill("")
    page.locator("#trouble").wait_for()
    assert page.locator("#trouble").inner_text() == "The text is empty. Write at least one character."
    page.locator("#text").fill("so")
    wait_for_tokens(page, 2)
    assert page.locator("#trouble").is_hidden()


def test_a_link_opens_the_same_state(open_live):
    page = open_live(f"#text={TEXT}&appended=[40,41]&layer=1&head=1&token=3")
    other = open_live(page.url[page.url.index("#") :])
    for opened in (page, other):
        assert opened.locator("#text").input_value() == TEXT
        assert opened.locator("#tokens .token").count() == len(TEXT) + 2
        assert opened.locator("#layer-select").input_value() == "1"
        assert opened.locator("#token-select").input_value() == "3"


def test_the_url_has_the_key_that_is_shown_when_the_weights_of_a_layer_arrive(open_live):
    page = open_live(f"#text={TEXT}")
    scroll_to(page.locator("#attention-section"))
    page.locator("#layer-select").select_option("1")
    settled(page)
    shown = page.evaluate("import('/page/main.js').then(({ shown }) => String(shown.choice.key))")
    assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('key')") == shown != "0"


def test_an_emptied_text_is_empty_after_a_reload(open_live):
    page = open_live(f"#text={TEXT}")
    page.locator("#text").fill("")
    page.wait_for_selector("#trouble:not([hidden])")
    page.reload()
    page.wait_for_selector("#trouble:not([hidden])")
    assert page.locator("#text").input_value() == ""


def test_back_returns_to_the_text_before_an_edit(open_live):
    page = open_live(f"#text={TEXT}")
    page.evaluate("Object.defineProperty(performance, 'now', { value: () => window.time ?? 0 })")
    for text in ("a", "ab"):  # one edit
        edit(page, TEXT + text)
    page.evaluate("window.time = 2000")
    edit(page, TEXT + "abc")
    page.locator("#text").blur()
    edit(page, TEXT + "abcd")
    for text in ("abc", "ab", ""):
        page.go_back()
        wait_for_tokens(page, len(TEXT + text))
        assert page.locator("#text").input_value() == TEXT + text
    page.go_forward()
    wait_for_tokens(page, len(TEXT) + 2)


def test_all_parts_are_shown_when_they_come_into_view(open_live):
    page = open_live(f"#text={TEXT}")
    scroll_through(page)
    assert page.locator("#lens tbody td").count() > 5
    assert page.locator("#recorded-weight").inner_text() == page.locator("#computed-weight").inner_text()
    assert "…" not in page.locator("#lens tbody td").all_inner_texts()


def test_the_small_maps_of_all_layers_are_one_request(open_live):
    page = open_live(f"#text={TEXT}")
    asked = []
    page.on("request", lambda request: "thumbs." in (request.post_data or "") and asked.append(request.post_data))
    with page.expect_request(lambda request: "thumbs." in (request.post_data or "")):
        edit(page, TEXT + "!")
        page.locator("#grid").scroll_into_view_if_needed()  # filling the text has scrolled to it
    settled(page)
    assert {body.count("thumbs.") for body in asked} == {2}


def test_a_hostile_text_is_shown_and_never_executed(open_live):
    page = open_live()
    edit(page, HOSTILE)
    assert page.title() == "toy · foretell"
    assert page.locator("#tokens .token").count() == len(HOSTILE)
    assert page.locator("main img").count() == 0


def test_an_error_is_one_line_and_the_last_pass_stays(open_live):
    page = open_live(f"#text={TEXT}", expected=["400"])
    before = next_rows(page)
    page.locator("#text").fill("x" * 500)
    page.wait_for_selector("#trouble:not([hidden])")
    assert "context" in page.locator("#trouble").inner_text()
    assert next_rows(page) == before
    edit(page, TEXT)
    assert page.locator("#trouble").is_hidden()


STALE = "[...document.querySelectorAll('[aria-busy]')].filter((e) => e.checkVisibility()).map((e) => e.id)"


@pytest.mark.parametrize("bad", ["", "x" * 500])
def test_what_belongs_to_another_text_is_stale_once_an_edit_is_refused(open_live, bad):
    page = open_live(f"#text={TEXT}", expected=["400"])
    continued = page.get_by_text("Add the most probable token")
    assert page.evaluate(STALE) == [] and continued.is_enabled()
    page.locator("#text").fill(bad)
    page.wait_for_selector("#trouble:not([hidden])")
    settled(page)
    assert {"facts", "where", "strip", "next-section", "here-section", "attention-section"} <= set(page.evaluate(STALE))
    assert page.locator("#next-section").evaluate("section => section.inert")
    assert page.locator("#next-section").evaluate("e => getComputedStyle(e).transitionProperty") == "filter"
    assert not continued.is_enabled()
    text, trouble = page.locator("#text").bounding_box(), page.locator("#trouble").bounding_box()
    assert 0 <= trouble["y"] - (text["y"] + text["height"]) < 40
    edit(page, TEXT)
    assert not page.locator("#next-section").evaluate("section => section.inert") and continued.is_enabled()
    assert not {"facts", "where", "strip", "next-section"} & set(page.evaluate(STALE))


def test_parts_that_are_not_in_view_are_stale_until_they_show_the_new_text(open_live):
    page = open_live(f"#text={TEXT}")
    lens = page.locator("#lens-section")
    scroll_to(lens)
    page.evaluate("scrollTo(0, 0)")
    edit(page, TEXT + "!")
    assert lens.get_attribute("aria-busy") == "true"
    lens.scroll_into_view_if_needed()
    page.wait_for_selector("#lens-section:not([aria-busy])")
    settled(page)

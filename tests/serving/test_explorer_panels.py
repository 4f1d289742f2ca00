"""The live page changes a pass, patches it from a second text, opens numbers and leaves as code, file and picture."""

from __future__ import annotations

import itertools
import json
import shlex
import xml.etree.ElementTree as ElementTree
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import torch

import foretell
from foretell.insight.replacement import without_heads
from tests.serving.conftest import click, click_on, code_of, open_address, scroll_to, settled, show_part

TEXT, OTHER = "The return value of the", "The second line of the file"
LENGTH = 5  # of the text, in tokens
CORE, BLOCK = "trunk.blocks.0.attention.core", "trunk.blocks.0"
CHANGES = [
    {"value": CORE, "heads": [1], "scale": 0},
    {"value": CORE, "heads": [0], "positions": [2, 3], "scale": 0.5},
    {"value": "trunk.blocks.1.feedforward.activation", "neurons": [5, 7], "scale": 2},
    {"value": BLOCK, "add": [0.25] * 192, "positions": [4]},
    {"value": "embed", "set": 0.125, "neurons": [3]},
    {"value": "trunk.blocks.1", "patch": OTHER, "positions": [4]},
]


def link(change: Any = (), **fields: str) -> str:
    values = {"text": TEXT, "change": json.dumps(change), **fields}
    return "#" + "&".join(f"{name}={quote(value)}" for name, value in values.items())


@pytest.fixture(scope="module")
def server(start_server, toy_model):
    return start_server("primer", f"toy={toy_model}", "--memory", "0.05")


@pytest.fixture(scope="module")
def model():
    return foretell.load("primer")


@pytest.fixture
def open_panels(open_live):
    """Open the live page at its panels."""

    def open_page(fragment: str, **options: Any) -> Any:
        page = open_live(fragment, **options)
        scroll_to(page.locator("#changes"))
        return page

    return open_page


@torch.inference_mode()
def probabilities(model, replace=None):
    with foretell.Trace(model, replace=replace):
        return model.log_probabilities(model(model.encode(TEXT))[0, -1]).exp()


def effect(page: Any) -> list[list[str]]:
    """The rows of the table of both passes: token, changed, original, difference."""
    page.locator("#change-effect tbody tr").first.wait_for()
    return [row.locator("th, td").all_inner_texts() for row in page.locator("#change-effect tbody tr").all()]


# --- changes ---------------------------------------------------------------------------------------------------------


def test_a_head_is_switched_off_scaled_and_restored(open_panels, model):
    page = open_panels(link())
    before = probabilities(model)
    page.locator("#head-select").select_option("1")
    click(page, "Head 1 of layer 0 off")
    after = probabilities(model, {CORE: without_heads(1)})
    best = int(after.argmax())
    shown = effect(page)[0]
    assert shown[1:3] == [f"{after[best]:.4f}", f"{before[best]:.4f}"]
    assert json.loads(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('change')")) == CHANGES[:1]
    slider = page.locator("#changes").get_by_role("slider", name="Factor: head 1")
    slider.fill("1")
    slider.dispatch_event("change")
    settled(page)
    assert [row[1] for row in effect(page)] == [row[2] for row in effect(page)]
    click(page, "Remove: head 1", "#changes")
    assert page.locator(".chip").count() == 0 and page.locator("#change-effect table").count() == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Attention of layer 1 off", "trunk.blocks.1.attention"),
        ("Feed-forward of layer 1 off", "trunk.blocks.1.feedforward"),
    ],
)
def test_a_layer_is_switched_off(open_panels, model, name, value):
    page = open_panels(link(layer="1"))
    click(page, name)
    after = probabilities(model, {value: torch.zeros_like})
    assert effect(page)[0][1] == f"{after.max():.4f}"


def test_a_neuron_is_switched_off(open_panels):
    page = open_panels(link())
    page.locator("#change-neuron").fill("7")
    click(page, "Neuron of layer 0 off")
    assert page.locator(".chip span").inner_text() == "neuron 7 of trunk.blocks.0.feedforward.activation"


def test_a_head_and_a_neuron_are_switched_off_where_they_are_shown(open_panels):
    page = open_panels(link(layer="1", head="1"))
    page.locator("#grid").scroll_into_view_if_needed()
    click(page, "layer 0, head 1", "#grid")
    click(page, "Switch off head 1 of layer 0")
    assert page.evaluate("document.activeElement.type") == "range"  # the focus is on the head's factor
    page.keyboard.press("ArrowRight")
    settled(page)
    scroll_to(page.locator("#neurons"))
    neuron = page.locator("#neurons .link").first
    number = int(neuron.inner_text())
    click_on(neuron)
    first, second = json.loads(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('change')"))
    assert first == {"value": CORE, "heads": [1], "scale": 0.05}
    assert second == {"value": f"{BLOCK}.feedforward.activation", "neurons": [number], "scale": 0}


def test_the_loss_and_its_difference(open_panels, model):
    page = open_panels(link(CHANGES[:1]))
    ids = model.encode(TEXT)
    losses = []
    for replace in ({CORE: without_heads(1)}, {}):
        with foretell.Trace(model, replace=replace), torch.inference_mode():
            logprobs = model.log_probabilities(model(ids)[0])
        losses.append(float(-logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean()))
    effect(page)
    words = page.locator("#change-effect .summary").inner_text()
    assert f"Loss of the text: {losses[0]:.4f}, originally {losses[1]:.4f}" in words


def test_a_vector_of_another_place_is_added(open_panels):
    page = open_panels(link())
    click_on(page.get_by_text("Add a vector to the stream"))
    page.locator("#vector").select_option("1")
    page.locator("#vector-factor").fill("2")
    page.locator("#vector-positions").select_option("1")
    click(page, "Add the vector")
    [change] = json.loads(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('change')"))
    assert change["positions"] == [LENGTH - 1] and len(change["add"]) == 192 and any(change["add"])
    assert "a vector of 192 numbers" in page.locator(".chip").inner_text()
    assert page.locator("#vector option").filter(has_text="the head’s row of").count() >= 5


def test_a_row_of_the_head_is_added(open_panels):
    """The rows of the new pass come after it, so the list of vectors is shorter for a moment."""
    page = open_panels(link())
    click_on(page.get_by_text("Add a vector to the stream"))
    row = page.locator("#vector option").filter(has_text="the head’s row of").first.inner_text()
    page.locator("#vector").select_option(label=row)
    click(page, "Add the vector")
    assert "a vector of 192 numbers" in page.locator(".chip").inner_text()
    assert page.locator("#trouble").is_hidden()


@torch.inference_mode()
def test_the_difference_of_two_texts_is_added(open_panels, model):
    page = open_panels(link())
    click_on(page.get_by_text("Add a vector to the stream"))
    page.locator("#vector").select_option(label=page.locator("#vector option").nth(2).inner_text())
    page.locator("#vector-of").select_option("2")
    page.locator("#vector-text").fill(OTHER)
    page.locator("#vector-position").fill("1")
    boxes = [part.bounding_box() for part in page.locator("#change-vector > :not(summary, [role=status])").all()]
    assert all(below["y"] - above["y"] - above["height"] >= 4 for above, below in itertools.pairwise(boxes))
    click(page, "Add the vector")
    [change] = json.loads(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('change')"))
    streams = []
    for text, position in ((OTHER, 1), (TEXT, LENGTH - 1)):
        with foretell.Trace(model, BLOCK) as trace:
            model(model.encode(text))
        streams.append(trace[BLOCK][0, position])
    assert change["add"] == pytest.approx((streams[0] - streams[1]).tolist(), abs=2e-4)


def test_a_change_that_is_refused_can_be_removed(open_panels):
    page = open_panels(link(), expected=["400"])
    page.evaluate("change => { location.hash += '&change=' + change; }", quote('[{"value":"nothing","scale":0}]'))
    page.wait_for_selector("#trouble:not([hidden])")
    assert "nothing" in page.locator("#trouble").inner_text()
    assert "nothing" in page.locator("#change-effect").inner_text()  # instead of numbers
    assert page.locator("#change-effect .number").count() == 0
    click(page, "Remove: nothing")
    assert page.locator("#trouble").is_hidden()


def test_panels_of_another_text_are_cleared_or_stale_at_once(open_panels):
    page = open_panels(link(CHANGES[:1], second=OTHER))
    click(page, "Compute the map")
    effect(page)
    page.evaluate("scrollTo(0, 0)")
    page.route("**/explore", lambda route: None)  # the answer never comes
    with page.expect_request("**/explore"):
        page.locator("#text").fill(OTHER)
    assert page.locator(".patches").count() == 0
    assert page.locator("#change-effect").get_attribute("aria-busy") == "true"


@pytest.mark.parametrize(
    "neuron", ["-1", "one too many", *(pytest.param(n, marks=pytest.mark.long) for n in ("1.5", ""))]
)
def test_a_neuron_that_is_none_changes_nothing(open_panels, model, neuron):
    page = open_panels(link())
    width = model.config.feedforward_width
    page.locator("#change-neuron").fill(str(width) if neuron == "one too many" else neuron)
    click(page, "Neuron of layer 0 off")
    assert page.locator(".chip").count() == 0 and page.locator("#trouble").is_hidden()
    assert page.locator("#change-neuron").evaluate("input => input.validationMessage")  # shown at the input
    page.locator("#change-neuron").fill(str(width - 1))
    click(page, "Neuron of layer 0 off")
    assert page.locator(".chip").count() == 1


def test_a_part_that_is_switched_off_twice_is_one_change(open_panels):
    page = open_panels(link([CHANGES[1], {"value": CORE, "scale": 0.5, "heads": [1]}], head="1"))
    for name, count in (("Head 1 of layer 0 off", 2), ("Attention of layer 0 off", 3), ("Attention of layer 0 off", 3)):
        click(page, name)
        assert page.locator("#changes .chip").count() == count
    changes = json.loads(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('change')"))
    assert changes == [CHANGES[1], CHANGES[0], {"value": f"{BLOCK}.attention", "scale": 0}]


def test_a_link_has_the_settings_of_sampling(open_panels):
    page = open_panels(link(temperature="0.5", top_k="7", min_p="-3"))
    names = [f"#{name}-number" for name in ("temperature", "top-k", "top-p", "min-p")]
    assert [page.locator(name).input_value() for name in names] == ["0.5", "7", "1", "0"]
    assert page.locator("#next-summary").inner_text().startswith("7 tokens of ")
    page.locator("#top-k-number").fill("1")
    page.locator("#temperature-number").fill("1")
    state = page.evaluate("location.hash")
    assert "top_k=1" in state and "temperature" not in state
    assert "without filters it has" in page.locator("#next-summary").inner_text()
    page.evaluate("hash => { location.hash = hash; }", link(text=OTHER))
    page.wait_for_selector("#next-summary:empty", state="attached")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"temperature": "5", "top_k": "x"},
            "The link names temperature 5, top_k x, which sampling does not allow. "
            "The page uses temperature 2, no top_k.",
        ),
        ({"top_p": "0", "token": "99"}, "The page shows token 4. The link names top_p 0, which sampling does not"),
        ({"change": "{}"}, "The link is damaged: its field “change” cannot be read."),
        ({"change": "[null]"}, "The link is damaged: its field “change” cannot be read."),
        ({"appended": "[33"}, "The link is damaged: its field “appended” cannot be read."),
        ({"model": "nope"}, "The link names the model “nope”, which this server does not have. The page shows primer."),
    ],
)
def test_what_a_link_names_and_the_page_cannot_show_is_reported(open_panels, fields, words):
    page = open_panels(link(**fields) if {"change", "model"} & fields.keys() else link() + f"&{urlencode(fields)}")
    assert words in page.locator("#trouble").inner_text()
    page.evaluate("hash => { location.hash = hash; }", link(temperature="0.5"))
    page.locator("#trouble").wait_for(state="hidden")


def test_a_server_that_does_not_answer(open_panels):
    page = open_panels(link(), expected=["ERR_FAILED"])
    page.route("**/explore", lambda route: route.abort())
    page.locator("#text").fill(OTHER)
    page.wait_for_selector("#trouble:not([hidden])")
    assert page.locator("#trouble").inner_text() == "The server does not answer. Is it running?"


def test_a_key_that_is_not_entered(open_panels):
    page = open_panels(link(), expected=["401"])
    answer = {"error": {"message": "send it as Authorization: Bearer KEY"}}
    page.route("**/explore", lambda route: route.fulfill(status=401, json=answer))
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.locator("#text").fill(OTHER)
    page.wait_for_selector("#trouble:not([hidden])")
    assert "reload the page to enter the key" in page.locator("#trouble").inner_text()


# --- patches ---------------------------------------------------------------------------------------------------------


def test_a_map_of_patches_and_a_click_on_a_cell(open_panels, server):
    page = open_panels(link(second=OTHER))
    page.locator("#patch-from").fill("2")
    click(page, "Compute the map")
    rows = page.locator(".patches tbody tr")
    assert rows.count() == 5 and page.locator(".patches .cell").count() == 5 * (LENGTH - 2)
    row = server.ask("/explore/patch", model="primer", text=TEXT, second=OTHER, layer=3, positions=[LENGTH - 1])
    shown = rows.nth(4).locator(".cell").last.get_attribute("title")
    assert f" → {row['positions'][0]['logprob']:.4f},".replace("-", "−") in shown
    cell = rows.nth(1).locator(".cell").nth(1)
    cell.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    settled(page)
    assert page.locator(".chip span").inner_text() == f"position 3 of {BLOCK} from “{OTHER}”"


def test_a_map_can_be_cancelled(open_panels):
    page = open_panels(link(second=OTHER))
    asked, held = [], []

    def hold(route: Any) -> None:
        asked.append(route.request.post_data_json["layer"])
        route.continue_() if len(asked) == 1 else held.append(route)

    page.route("**/explore/patch", hold)
    page.locator("#patch").get_by_role("button", name="Compute the map").click()
    page.wait_for_selector(".patches tbody tr")
    click_on(page.locator("#patch").get_by_role("button", name="Cancel"))
    assert asked == [-1, 0] and len(held) == 1
    assert page.locator(".patches tbody tr").count() == 1 and page.locator("#trouble").is_hidden()


def test_a_second_text_that_is_too_short(open_panels):
    page = open_panels(link(second="a"))
    page.locator("#patch-from").fill("5")
    click(page, "Compute the map")
    assert "second text" in page.locator("#patch-map").inner_text()
    for first, second, words in (
        ("2", "A bird", "The first position is after the last"),
        ("", "", "Enter a second text"),
    ):
        page.locator("#second").fill(second)
        page.locator("#patch-from").fill(first)
        page.locator("#patch-to").fill("0")
        click(page, "Compute the map")
        assert words in page.locator("#patch-map").inner_text()
    assert page.locator("#trouble").is_hidden()


def test_an_error_of_a_second_text_names_its_field_and_is_next_to_it(open_panels):
    page = open_panels(link(), expected=["400"])
    click_on(page.get_by_text("Add a vector to the stream"))
    page.locator("#vector-of").select_option("1")
    click(page, "Add the vector")
    assert page.locator("#change-vector [role=status]").inner_text() == "Second text: give at least one character"
    for panel, field, button, result in (
        ("patch", "second", "Compute the map", "patch-map"),
        ("compare", "other-text", "Compare", "compared"),
    ):
        page.locator(f"#{panel} details").evaluate("details => details.open = true")
        page.locator(f"#{field}").fill("word " * 200)
        click(page, button, f"#{panel}", exact=True)
        label = page.locator(f"label[for={field}]").inner_text()
        assert f"{label}: 400 tokens do not fit" in page.locator(f"#{result}").inner_text()
    assert page.locator("#trouble").is_hidden()


def test_a_second_text_is_kept_in_the_link_and_asks_for_no_pass(open_panels):
    page = open_panels(link())
    click_on(page.locator("#patch summary").first)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#second").fill(OTHER)
    page.locator("#second").blur()
    settled(page)
    assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('second')") == OTHER
    assert asked == []


def test_a_map_of_another_second_text_is_stale(open_panels):
    page = open_panels(link(second=OTHER))
    click(page, "Compute the map")
    is_stale = "document.querySelector('#patch-map').ariaBusy"
    assert page.evaluate(is_stale) is None
    for second, expected in (("A bird", "true"), (OTHER, None)):
        page.locator("#second").fill(second)
        page.locator("#second").blur()
        assert page.evaluate(is_stale) == expected


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_a_number_opens_down_to_a_weight_and_back(open_panels, model):
    page = open_panels(link(CHANGES[:1]))
    effect(page)
    click_on(page.locator("#change-effect td .opens").first)
    panel = page.locator("#value")
    assert panel.locator("code").inner_text().startswith(f"probabilities[{LENGTH - 1},")
    click_on(panel.locator("td .opens").first)  # the logit
    assert panel.locator("code").inner_text().startswith("head[")
    click_on(panel.locator("td .opens").first)  # a weight of the head
    name, _, index = panel.locator("code").inner_text().rstrip("]").partition("[")
    weight = dict(model.decoder.named_parameters())[name].detach()[tuple(map(int, index.split(",")))]
    assert float(panel.locator("dd").first.inner_text().replace("−", "-")) == pytest.approx(float(weight), rel=1e-6)
    assert "training sets it" in panel.inner_text() and panel.locator("dd").count() == 1  # it is not recomputed
    assert panel.locator(".opens").count() == 0  # its own address does not open again
    click(page, "Back", "#value")
    click(page, "probabilities", "#value-path")
    assert panel.locator("code").inner_text().startswith("probabilities[")
    page.keyboard.press("Escape")
    assert panel.is_hidden()


FOURTEEN = "The return value of the function is the return value of the function is"  # tokens


@pytest.mark.parametrize(
    ("address", "count"),
    [("head[3,1]", 12 + 1 + 1), ("probabilities[3,1]", 12 + 2 + 1), (f"{CORE}.weights[0,13,2]", 14)],
)
def test_the_rows_of_operands_add_up_to_their_sum(open_panels, address, count):
    """The rows that are not shown are one row, before the last."""
    page = open_panels(link(text=FOURTEEN))
    page.locator("#changes .opens").first.click()
    open_address(page, address)
    rows = [
        row.locator("th, td").all_inner_texts() for row in page.locator("#value table").last.locator("tbody tr").all()
    ]
    *numbers, total = [float(row[-1].replace("−", "-")) for row in rows]
    assert len(numbers) == count
    assert sum(numbers) == pytest.approx(total, abs=1e-5)


def test_a_contribution_opens_down_to_what_a_head_wrote(open_panels):
    page = open_panels(link(layer="1", head="2"))
    show_part(page, "#contributions", "#contribution-sums tbody tr")
    panel, reading = page.locator("#value"), page.locator("#contribution-attention-reading")
    assert reading.inner_text().startswith("Head 2 of layer 1: ")
    logit = page.locator("#contribution-sums .total .opens").last
    click_on(logit)
    assert panel.locator("code").inner_text().startswith(f"head[{LENGTH - 1},")
    page.locator("#contribution-against").select_option("1")
    row = page.locator("#contribution-sums tr").filter(has_text="layer 1, attention")
    shown = row.locator(".opens").inner_text()
    click_on(row.locator(".opens"))
    assert panel.locator("dd").first.inner_text()[: len(shown) - 1] == shown[:-1]
    names = ("contributions.difference[", "contributions[", "contributions[", "contributions.vector[")
    rest = ("contributions.written[", "trunk.blocks.1.attention.output.weight[")
    for name, number in zip(
        (*names, *rest), (".sources .opens", *["tbody .opens"] * 2, ".sources .opens", "tbody .opens", ""), strict=True
    ):
        assert panel.locator("code[aria-current]").inner_text().startswith(name)
        assert "does not follow" not in panel.inner_text()
        if number:
            buttons = panel.locator(number)
            click_on(buttons.nth(1) if name == "contributions[" else buttons.first)
    assert "training sets it" in panel.inner_text()


@pytest.mark.parametrize("table", ["#row-table", "#next-table"])
def test_the_focus_returns_to_the_number_that_was_opened(open_panels, table):
    page = open_panels(link())
    scroll_to(page.locator("#attention-section"))
    page.locator(f"{table} .opens").nth(1).focus()
    address = "document.activeElement.closest('[data-address]')?.dataset.address"
    opened = page.evaluate(address)
    page.keyboard.press("Enter")
    settled(page)
    assert opened and page.locator("#address").input_value() == opened
    open_address(page, "head[3,1]")
    assert page.inner_text("#value-path ol") == "head[3,1]"
    page.keyboard.press("Escape")
    assert page.evaluate(address) == opened


def test_a_typed_address_and_one_that_is_wrong(open_panels):
    page = open_panels(link(CHANGES[:1]), expected=["400"])
    effect(page)
    page.locator("#change-effect .opens").first.click()
    for address, words in ((f"{CORE}[1,3,2]", "A change replaced this number"), (f"{CORE}.weights[0,3,1]", "query 3")):
        open_address(page, address)
        assert words in page.locator("#value").inner_text()
    open_address(page, "<img src=x onerror=alert(1)>[0]")
    assert "is not an address" in page.locator("#value-body").inner_text()
    assert page.locator("#trouble").is_hidden()
    assert page.locator("#value img").count() == 0


# --- ways out --------------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_table_are_one_stop_of_the_tab_key(open_panels):
    page = open_panels(link())
    show_part(page, "#terms-title", "#terms tbody tr")
    buttons = page.locator("#terms .opens")
    assert buttons.count() > 8 and page.locator("#terms .opens[tabindex='0']").count() == 1
    buttons.first.focus()
    focused = "document.activeElement.closest('td').cellIndex * 1000 + document.activeElement.closest('tr').rowIndex"
    places = [page.evaluate(focused)]
    for key in ("ArrowRight", "ArrowDown", "Home", "ArrowUp", "ArrowUp", "End"):
        page.keyboard.press(key)
        places.append(page.evaluate(focused))
    assert places == [2001, 3001, 3002, 2002, 2001, 2001, 4001]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == 4001
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.matches('#terms .opens')")
    stop = "document.querySelector(\"#terms .opens[tabindex='0']\").closest('[data-address]').dataset.address"
    address = page.evaluate(stop)
    click(page, "Sort by dimension", "#terms")
    assert page.evaluate(stop) == address  # a table that is drawn again keeps its stop
    buttons.nth(2).focus()
    page.keyboard.press("Enter")
    settled(page)
    assert "attention.core." in page.locator("#value-path").inner_text()


@pytest.mark.parametrize("change", [pytest.param([], marks=pytest.mark.long), CHANGES])
def test_python_prints_the_numbers_of_the_page(open_panels, change, capsys):
    page = open_panels(link(change, appended="[33]"))
    code = code_of(page, "As Python")
    exec(compile(code, "<page>", "exec"), {})
    *tokens, loss = capsys.readouterr().out.splitlines()
    shown = page.locator("#next-table tbody .number").all_inner_texts()
    assert [line.split()[0] for line in tokens] == shown[:5]
    assert f"Loss of the text: {loss.removeprefix('loss ')}" in page.locator("#change-effect").inner_text()


@pytest.mark.parametrize(
    "settings", [{"temperature": "0.7", "top_k": "40", "top_p": "0.9", "min_p": "0.01"}, {"temperature": "0"}]
)
def test_python_prints_the_numbers_of_the_page_with_its_settings_of_sampling(open_panels, settings, capsys):
    page = open_panels(link(CHANGES[:1], **settings))
    code = code_of(page, "As Python")
    exec(compile(code, "<page>", "exec"), {})
    printed = capsys.readouterr().out.splitlines()[:5]
    shown = page.locator("#next-table tbody tr").all()[:5]
    assert [line.split()[0] for line in printed] == [row.locator(".number").last.inner_text() for row in shown]
    pieces = [row.locator("th").inner_text().replace("␣", " ").replace("⏎", "\n") for row in shown]
    assert [line.split(" ", 1)[1] for line in printed] == [repr(piece) for piece in pieces]
    page.locator("#min-p-number").fill("0.5")
    assert page.locator("#export-code").count() == 0  # it has the settings before


def test_curl_asks_what_the_page_asks(open_panels, server):
    page = open_panels(link(CHANGES[-1:], text="it's"))
    words = shlex.split(code_of(page, "As curl"))
    assert words[0] == "curl" and words[2] == f"{server.address}/explore"
    body = json.loads(words[words.index("-d") + 1])
    assert body["change"] == CHANGES[-1:] and body["text"] == "it's"
    assert server.post("/explore", **body).status_code == 200


def test_the_state_as_a_file(open_panels, browser, tmp_path):
    page = open_panels(link(CHANGES[:1], appended="[33]", layer="2", head="1", token="3", key="1"))
    page.locator("#export details").evaluate("details => details.open = true")
    with page.expect_download() as download:
        click(page, "As one file")
    download.value.save_as(tmp_path / "page.html")
    context = browser.new_context()
    opened = context.new_page()
    opened.goto((tmp_path / "page.html").as_uri())
    opened.wait_for_selector("html[data-complete]")
    assert opened.locator("#tokens .token").count() == LENGTH + 1
    assert f"The pass was changed: {CORE}, scale 0.0, heads 1." in opened.locator("footer").inner_text()
    assert "left out" not in opened.locator("footer").inner_text()
    for name, value in {"token": "3", "layer": "2", "head": "1"}.items():
        assert opened.locator(f"#{name}-select").input_value() == value
    assert opened.locator("#reading").inner_text().startswith("“␣of” (3) → “␣return” (1): ")
    rows = "#next-table tbody .number"
    assert opened.locator(rows).all_inner_texts() == page.locator(rows).all_inner_texts()
    context.close()


@pytest.mark.parametrize(
    "ending", [pytest.param("SVG", marks=pytest.mark.long), "PNG"]
)  # a browser may refuse the second download of a page
def test_a_panel_as_a_picture(open_panels, ending):
    page = open_panels(link(CHANGES[:1]))
    page.locator("#export details").evaluate("details => details.open = true")
    page.locator("#export-panel").focus()
    page.locator("#export-panel").select_option(label="Change the pass")
    with page.expect_download() as download:
        click(page, ending, "#export")
    content = download.value.path().read_bytes()
    assert download.value.suggested_filename == f"change-the-pass.{ending.lower()}"
    if ending == "SVG":
        assert "".join(ElementTree.fromstring(content).itertext()).count("Head 0 of layer 0 off") == 1
    else:
        assert content.startswith(b"\x89PNG") and len(content) > 5000


def test_the_chosen_panel_stays_when_others_come_or_go(open_panels):
    page = open_panels(link(CHANGES[:1]))
    page.locator("#export details").evaluate("details => details.open = true")
    page.locator("#export-panel option").first.wait_for(state="attached")
    titles = page.locator("#export-panel option").all_inner_texts()
    assert len(titles) == len(set(titles))
    page.locator("#export-panel").select_option(label=titles[-1])
    page.evaluate("[...document.querySelectorAll('.card')].find((card) => card.offsetParent).style.display = 'none'")
    with page.expect_download() as download:
        click(page, "SVG", "#export")
    assert titles[-1] in "".join(ElementTree.fromstring(download.value.path().read_bytes()).itertext())


def saved(page: Any, ending: str = "SVG") -> Any:
    """The name and the path of the chosen panel's picture."""
    with page.expect_download() as download:
        click(page, ending, "#export")
    return download.value.suggested_filename, download.value.path()


def test_the_list_of_panels_and_the_picture_follow_the_page(open_panels):
    page = open_panels(link(token="3"))
    scroll_to(page.locator("#attention-section"))
    page.locator("#export details").evaluate("details => details.open = true")
    chosen = page.locator("#export-panel option:checked")
    page.locator("#export-panel").select_option(label="Attention weights of “␣of” (3)")
    page.locator("#token-select").select_option("1")
    page.locator("#export-panel option", has_text="Attention weights of “␣return” (1)").wait_for(state="attached")
    assert chosen.inner_text() == "Attention weights of “␣return” (1)"
    scroll_to(page.locator("#formulas-section"))
    formula = "The logit of the most probable token after “␣return” (1)"
    page.locator("#export-panel option", has_text=formula).wait_for(state="attached")
    assert chosen.inner_text() == "Attention weights of “␣return” (1)"
    name, path = saved(page)
    assert name == "attention-weights-of-return-1.svg"
    assert "Attention weights of “␣return” (1)" in path.read_text("utf-8")
    page.locator("#export-panel").select_option(label=formula)
    page.locator("#token-select").select_option("2")  # the card is made again
    name, path = saved(page)
    assert name == "the-logit-of-the-most-probable-token-after-value-2.svg"


def test_a_panel_that_was_not_in_view_has_its_numbers_in_the_picture(open_panels):
    page = open_panels(link(), reduced_motion="reduce", viewport={"width": 1280, "height": 300})  # it jumps
    assert page.locator("#sizes tbody tr").count() == 0
    page.locator("#export details").evaluate("details => details.open = true")
    page.locator("#export-panel").select_option(label="The norm of the vector")
    assert saved(page)[1].read_text("utf-8").count("<tr") == 11


IN_PICTURE = """() => {
    const around = document.documentElement.getBoundingClientRect();
    const isOutside = (element) => {
        const { right, bottom } = element.getBoundingClientRect();
        return right > around.width + 1 || bottom > around.height + 1;
    };
    const elements = [...document.querySelectorAll("foreignObject *")];
    const isScrolled = (element) => element.matches(".scroll") && getComputedStyle(element).overflowY !== "visible";
    return { outside: elements.filter(isOutside).length, scrolled: elements.filter(isScrolled).length,
        rows: elements.filter((each) => each.localName === "tr").length };
}"""


@pytest.mark.parametrize(
    ("panel", "rows", "width"),
    [("The norm of the vector", 11, 1280), ("q·k term by term", 67, 1280), ("q·k term by term", 67, 420)],
)
def test_a_picture_shows_all_of_a_table(open_panels, browser, panel, rows, width):
    page = open_panels(link(), viewport={"width": width, "height": 800})
    page.locator("#export details").evaluate("details => details.open = true")
    option = page.locator("#export-panel option", has_text=panel).first
    page.locator("#export-panel").select_option(option.get_attribute("value"))
    _, path = saved(page)
    path.rename(path.with_suffix(".svg"))
    picture = browser.new_context(viewport={"width": 800, "height": 600}).new_page()
    picture.goto(path.with_suffix(".svg").as_uri())
    assert picture.evaluate(IN_PICTURE) == {"outside": 0, "scrolled": 0, "rows": rows}
    picture.context.close()


def test_a_picture_that_cannot_be_made_is_an_error_on_the_page(open_panels):
    page = open_panels(link(CHANGES[:1]), expected=["ERR_FAILED"])
    page.route("**/page/style.css", lambda route: route.abort())
    page.locator("#export details").evaluate("details => details.open = true")
    click(page, "SVG", "#export")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "fetch" in page.locator("#trouble").inner_text()


# --- the whole -------------------------------------------------------------------------------------------------------


def test_printing_reads_all_parts_before(open_panels):
    page = open_panels(
        link(), viewport={"width": 1280, "height": 300}
    )  # the lens is not in view, even in an empty page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    missing = page.locator("footer").inner_text()
    assert (
        "had not been in view: " in missing
        and "The logit lens, Contributions to a logit, Learning: one step of gradient descent, The formulas" in missing
    )
    assert "The text as tokens" not in missing and "The source" not in missing
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("footer").inner_text() == ""
    page.reload()
    settled(page)
    assert page.locator("#lens tbody td").count() == 0
    page.evaluate("window.print = () => { window.printed = document.querySelector('#main').innerText; }")
    page.locator("#export details").evaluate("details => details.open = true")
    click(page, "Print")
    assert "are being read" not in page.evaluate("window.printed")
    assert page.locator("#lens tbody td").count() > 5


def test_panels_that_are_folded_are_not_printed(open_panels):
    page = open_panels(link(second=OTHER))
    page.emulate_media(media="print")
    assert page.locator("#patch").is_visible()
    assert not page.locator("#compare").is_visible() and not page.locator("#changes .editor-row").first.is_visible()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), pytest.param(1280, "light", marks=pytest.mark.long)])
def test_the_panels_are_accessible(open_panels, accessibility_problems, scheme, width):
    page = open_panels(link(CHANGES, second=OTHER), viewport={"width": width, "height": 800}, color_scheme=scheme)
    click(page, "Compute the map")
    page.get_by_text("Add a vector to the stream").click()
    code_of(page, "As Python")
    assert accessibility_problems(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    click_on(page.locator("#change-effect .opens").first)
    assert accessibility_problems(page) == []


def test_hostile_links_are_shown_and_never_executed(open_panels):
    hostile = "</script><img src=x onerror=document.title='run'>"
    changes = [
        {"value": hostile, "scale": 0},
        {"value": CORE, "patch": hostile, "heads": hostile},
        {hostile: hostile},
        7,
        None,
    ]
    page = open_panels(link(second=hostile), expected=["400"])
    page.evaluate("hash => { location.hash = hash; }", link(changes, second=hostile, text=hostile))
    page.wait_for_selector("#trouble:not([hidden])")
    assert page.locator(".chip").count() == 4
    code_of(page, "As Python")
    code_of(page, "As curl")
    assert page.title() == "primer · foretell" and page.locator("#live-panels img").count() == 0
    page.evaluate("hash => { location.hash = hash; }", link().replace("%5B%5D", "[xx"))
    page.wait_for_selector("#trouble:has-text('The link is damaged')")


def test_two_texts_are_compared(open_live, model):
    page = open_live(link(otherText=OTHER), expected=["404"])
    page.locator("#compare").scroll_into_view_if_needed()
    page.wait_for_selector("#compared table")
    settled(page)
    rows = page.locator("#compared table").first.locator("tbody tr").all()
    shown = {row.locator("th").inner_text(): row.locator(".number").all_inner_texts() for row in rows}
    for column, text in enumerate((TEXT, OTHER)):
        for token in foretell.next_tokens(model, text, top=3)[0].tokens:
            name = token.text.replace(" ", "␣").replace("\n", "⏎")
            assert abs(float(shown[name][column]) - token.probability) < 6e-5
    assert page.locator("#compared table").nth(1).locator("tbody tr").count() == model.config.num_layers + 1
    page.locator("#compared td", has_text="…").first.wait_for(state="detached")  # while the lens is computed
    page.evaluate("location.hash += '&otherModel=nothing'")
    page.wait_for_selector("#compared:has-text('No comparison: no model is named')")
    assert page.locator("#compared table").count() == 0
    page.get_by_text("End the comparison").click()
    page.wait_for_selector("#compared:empty", state="attached")
    page.locator("#other-text").fill(OTHER)
    click(page, "Compare", "#compare", exact=True)
    assert page.locator("#other-text").input_value() == OTHER and page.locator("#compared table").count() == 2


def test_the_same_text_is_compared_with_another_model(open_panels):
    page = open_panels(link())
    page.locator("#compare details").evaluate("details => details.open = true")
    model, text = page.locator("#other-model"), page.locator("#other-text")
    table = page.locator("#compared table").first
    url = "new URLSearchParams(location.hash.slice(1))"
    chosen = f"[{url}.get('otherModel'), {url}.get('otherText')]"

    def compare() -> None:
        click(page, "Compare", "#compare", exact=True)
        table.wait_for()

    for _ in range(2):
        model.focus()
        page.keyboard.press("ArrowDown")
        settled(page)
        compare()
        assert page.evaluate(chosen) == ["toy", TEXT] == [model.input_value(), text.input_value()]
        cells = table.locator(".number").all_inner_texts()
        assert any(cell.startswith(("+", "−")) for cell in cells)
        assert "—" in cells and "—: this model has no token with this text" in table.inner_text()
        click(page, "End the comparison")
        assert model.input_value() == "primer" and table.count() == 0
    model.select_option("toy")
    text.fill(OTHER)
    compare()
    assert page.evaluate(chosen) == ["toy", OTHER]
    text.fill("")
    compare()
    assert page.evaluate(chosen) == ["toy", TEXT]
    click(page, "End the comparison")
    text.fill(OTHER)
    model.select_option("toy")
    compare()
    assert page.evaluate(chosen) == ["toy", OTHER] == [model.input_value(), text.input_value()]

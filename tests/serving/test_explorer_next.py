"""A text that goes on: its logits come from kept keys before the pass, with the same bits if layers are strict."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import foretell
from foretell.insight.page.packing import pack_exact
from foretell.insight.page.page_pass import PageModel
from foretell.model.cache import KeptKVView
from foretell.serving.explorer import GivenUpKVView, KeptPasses, LeftError
from tests.serving.conftest import settled
from tests.toy import make_toy

TEXT = "The return value of the function is"
OFF = {"value": "trunk.blocks.0.attention", "scale": 0}
# each text goes on from the one before it, or changes its end
GROWING = [(TEXT, [33]), (TEXT, [33, 34]), (TEXT, [40]), (TEXT[:-1], []), (TEXT + " to", []), (TEXT, [])]


@pytest.fixture(scope="module")
def strict_server(start_server, toy_model):
    return start_server(str(toy_model), "--memory", "0.05", "--strict")


@pytest.fixture(scope="module")
def strict_model(toy_model):
    return foretell.load(toy_model).strict()


def lines(server, **body):
    answer = server.post("/explore", sections=["logits"], **body)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def early(server, **body):
    """The logits that come before the pass, if any do, and the pass's own."""
    first, *rest = lines(server, **body)
    return first.get("next"), rest[-1]["section"]


def test_a_text_that_goes_on_has_the_bits_of_its_whole_pass_with_strict_layers(strict_server, strict_model):
    _, section = early(strict_server, text=TEXT)
    for text, appended in GROWING:
        before, section = early(strict_server, text=text, appended=appended)
        assert before == {"isExact": True, "section": section}, (text, appended)
    traced = PageModel.of(strict_model).record(strict_model.encode(TEXT), TEXT, [])
    assert torch.equal(read_in_two_parts(strict_model, traced.ids), traced.last_logits)
    assert section == asdict(pack_exact("logits", traced.logits)) | {"shape": [len(traced.logits)]}


def served_model(model, look_bytes=2**26) -> Any:
    return SimpleNamespace(name="m", model=model, look_bytes=look_bytes)


@torch.inference_mode()
def keys_of(model, ids):
    view = KeptKVView(torch.tensor([ids]))
    model.decoder.hidden(torch.tensor([ids]), view)
    return view.kept


def read_in_two_parts(model, ids):
    kept, served = KeptPasses(), served_model(model)
    kept.keep(served, "", ids[:-2], keys_of(model, ids[:-2]))
    logits = kept.read_on(served, "", ids)
    assert logits is not None
    return logits


@pytest.mark.parametrize(
    "shape",
    [
        {"position": "rotary", "num_kv_heads": 1},
        {"position": "learned"},
        {"position": "rotary", "window": 5},
        {"position": "none", "norm": "rmsnorm"},
    ],
)
def test_every_kind_of_decoder_reads_on_with_the_same_bits(shape):
    size = {"num_layers": 2, "num_heads": 2, "width": 32, "head_width": 16, "context_length": 64}
    model = make_toy(seed=5, name="m", **size, **shape).strict()
    ids = model.encode(TEXT)
    whole = PageModel.of(model).record(ids, TEXT, []).last_logits
    assert torch.equal(read_in_two_parts(model, ids), whole)


def test_other_layers_give_logits_that_the_pass_replaces(server):
    early(server, text=TEXT)
    before, section = early(server, text=TEXT, appended=[33])
    assert before["isExact"] is False
    assert before["section"]["shape"] == section["shape"] and before["section"]["kind"] == section["kind"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"text": TEXT}, {"text": "X" + TEXT[1:], "appended": [33]}),  # another beginning
        ({"text": TEXT}, {"text": TEXT + " of the module"}),  # more than an eighth is new
        ({"text": TEXT}, {"text": TEXT, "appended": [33], "change": [OFF]}),
        ({"text": "other " + TEXT, "change": [OFF]}, {"text": "other " + TEXT, "appended": [33]}),
    ],
)
def test_no_other_pass_has_logits_before_it(strict_server, first, second):
    early(strict_server, **first)
    assert early(strict_server, **second)[0] is None


def test_a_client_reads_on_from_its_own_texts_alone(strict_model):
    kept, served, ids = KeptPasses(), served_model(strict_model), strict_model.encode(TEXT)
    kept.keep(served, "one", ids, keys_of(strict_model, ids))
    other_model: Any = SimpleNamespace(**vars(served) | {"name": "n"})
    assert kept.read_on(served, "other", [*ids, 33]) is None and kept.read_on(other_model, "one", [*ids, 33]) is None
    assert kept.read_on(served, "one", [*ids, 33]) is not None


def test_kept_passes_stay_within_their_memory(strict_model):
    kept, ids = KeptPasses(), strict_model.encode(TEXT)
    keys = keys_of(strict_model, ids)
    size = sum(each.nbytes for pair in keys.values() for each in pair)
    served = served_model(strict_model, look_bytes=2 * size)
    for client in ("a", "b", "c"):
        kept.keep(served, client, ids, keys)
    assert [kept.read_on(served, client, [*ids, 33]) is not None for client in ("a", "c")] == [False, True]
    served.look_bytes = size - 1
    kept.keep(served, "d", ids, keys)
    assert kept.read_on(served, "d", [*ids, 33]) is None


def test_the_last_pass_of_a_client_is_read_again_if_it_has_the_values(strict_model):
    kept, served, ids = KeptPasses(), served_model(strict_model), strict_model.encode(TEXT)
    served.page = page = PageModel.of(strict_model)
    stream = [point.name for point in page.points]
    traced, partial = page.record(ids, TEXT, stream), page.record(ids, TEXT, stream[:1])
    kept.keep_recorded(served, "one", {"text": TEXT}, traced)
    kept.keep_recorded(served, "one", {"text": TEXT}, partial)  # lacks the stream, and so does not replace it
    assert kept.recorded("one", {"text": TEXT}, stream[2:]) is traced
    for client, asked, values in (
        ("other", {"text": TEXT}, stream),
        ("one", {"text": TEXT, "answer": 1}, stream),
        ("one", {"text": TEXT}, [page.attention[0].weights]),
    ):
        assert kept.recorded(client, asked, values) is None
    served.look_bytes = traced.recorded.trace.held_bytes
    kept.keep_recorded(served, "other", {"text": TEXT}, traced)
    assert kept.recorded("one", {"text": TEXT}, stream) is None and kept.recorded("other", {"text": TEXT}, stream)


def test_the_lens_is_the_same_of_a_kept_pass_and_of_its_own(server):
    own, _, kept = (
        server.post("/explore", text="A text of this test alone", sections=sections).text.splitlines()[1:]
        for sections in (["lens.ranks.1"], ["stream.sizes"], ["lens.ranks.1"])
    )
    assert own == kept and len(own) == 1


def test_a_pass_whose_client_leaves_ends_after_the_layer(strict_model):
    ids = torch.tensor([strict_model.encode(TEXT)])
    view = GivenUpKVView(ids)

    def leave(*_):
        view.has_left = True

    with strict_model.decoder.get_submodule("trunk.blocks.0").register_forward_hook(leave), pytest.raises(LeftError):
        strict_model.decoder.hidden(ids, view)
    assert list(view.kept) == [0]


def test_the_page_marks_provisional_numbers_until_the_pass_is_there(open_live):
    page = open_live(f"#text={TEXT}")
    page.evaluate(
        """() => { window.seen = [];
        const summary = document.querySelector("#next-summary"), section = document.querySelector("#next-section");
        const isEarly = () => section.classList.contains("provisional");
        const observer = new MutationObserver(() => window.seen.push(`${isEarly()}: ${summary.textContent}`));
        observer.observe(summary, { childList: true }); }"""
    )
    page.get_by_text("Add the most probable token").click()
    page.wait_for_selector(f"#tokens .token:nth-child({len(TEXT) + 1})")
    settled(page)
    first, *_, last = page.evaluate("window.seen")
    assert first.startswith("true: Provisional") and last == "false: ", (first, last)


def test_rows_of_the_lens_are_shown_as_they_arrive(open_live):
    """The lens of the last layer never arrives, and the first rows are shown."""
    page = open_live()

    def without_last_layer(route):
        body = route.request.post_data_json
        names = [name for name in body["sections"] if not (name.startswith("lens.") and name.endswith(".2"))]
        route.continue_(post_data=json.dumps(body | {"sections": names}))

    page.route("**/explore", without_last_layer)
    page.locator("#text").fill(TEXT)
    page.locator("#lens-map").scroll_into_view_if_needed()
    page.wait_for_selector("#lens-canvas", state="visible")
    settled(page)
    page.locator("#lens-canvas").focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    assert "embedding: top " in page.locator("#lens-reading").inner_text()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert page.locator("#lens-reading").inner_text() == "These numbers are being read."

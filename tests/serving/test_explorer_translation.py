"""The live page of a translation model: the source, its translation, and all panels of the pass that reads both."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
import torch

from foretell.config.section import make_section
from foretell.insight.address import one_row
from foretell.insight.page.page_pass import PageModel
from foretell.insight.page.sections import all_sections, find_sections, needed_values
from foretell.insight.trace import Trace
from foretell.text.tokenizer_training import train_tokenizer
from foretell.translation.config import VASWANI, EncoderDecoderConfig
from foretell.translation.encoder_decoder import make_encoder_decoder
from foretell.translation.pairs import make_vocabulary
from foretell.translation.translator import Translator, load_translator, save_translator
from tests.serving.conftest import click, click_on, code_of, scroll_through, settled, show_part

SOURCE, TARGET = "the cat sat", "le chien"
SIZES = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 48}
PASS = {"model": "fr", "source": SOURCE, "text": TARGET}
CROSS = "trunk.blocks.0.cross_attention.core.weights"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator") / "fr"
    folder.mkdir()
    tokenizer = train_tokenizer("characters", ["the cat sat a dog ran far le chien assis"])
    sizes = {**SIZES, "vocab_size": tokenizer.vocab_size + 1}
    config = make_section(EncoderDecoderConfig, {**VASWANI, **sizes})
    vocabulary = make_vocabulary(tokenizer, tokenizer)
    save_translator(folder, Translator(make_encoder_decoder(config, seed=1).eval(), vocabulary))
    return folder


@pytest.fixture(scope="module")
def server(start_server, folder, toy_model):
    return start_server(str(folder), str(toy_model), "--memory", "0.05")


@pytest.fixture(scope="module")
def given(folder):
    return load_translator(folder).given(SOURCE)


def opened(open_live: Any, **state: Any) -> Any:
    return open_live("#" + "&".join(f"{name}={value}" for name, value in {**PASS, **state}.items()))


def texts(page: Any, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def unfold(page: Any, panel: str) -> None:
    page.locator(f"#{panel} details").evaluate("details => details.open = true")


def test_a_page_has_the_paths_of_the_attention_cores_of_both_stacks(given):
    page, layers = PageModel.of(given), range(SIZES["num_layers"])
    assert page.cores == {
        "own": [f"trunk.blocks.{layer}.attention.core" for layer in layers],
        "cross": [f"trunk.blocks.{layer}.cross_attention.core" for layer in layers],
        "encoder": [f"encoder.trunk.blocks.{layer}.attention.core" for layer in layers],
    }


# --- the routes ------------------------------------------------------------------------------------------------------


def test_sections_are_those_of_a_pass_with_the_library(server, given):
    page, sections = PageModel.of(given), all_sections(PageModel.of(given))
    names = [name for name in sections if name not in ("vocabulary", "outline")]
    names += ["encoder.at.0.0", f"encoder.at.1.{len(given.memory.ids) - 1}"]
    answer = server.post("/explore", **PASS, sections=names)
    first, *rest = map(json.loads, answer.text.splitlines())
    assert [token["id"] for token in first["pass"]["memory"]["tokens"]] == list(given.memory.ids)
    found = find_sections(page, sections, names)
    traced = page.record(given.encode_fitting(TARGET), TARGET, needed_values(page, found.values()))
    for name, line in zip(names, rest, strict=True):
        family, index = found[name]
        expected = family.pack_live(index, family.content(traced, index))
        assert line["section"] == {**asdict(expected), "shape": list(expected.shape)}, name


def test_the_page_lists_models_that_read_a_source(server):
    models = server.client.get("/explore").json()["models"]
    assert {model["name"]: model["reads"] for model in models} == {"fr": "source", "toy": "text"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({**PASS, "source": ""}, "fr translates; give the sentence to translate"),
        ({**PASS, "source": "the cat " * 20}, "does not fit the model's context"),
        ({**PASS, "model": "toy"}, "source: toy reads none"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(server, body, words):
    assert words in server.refuse("/explore", **body)["message"]


def test_a_number_of_the_encoder_decoder_attention_has_operands(server):
    found = server.ask("/explore/value", **PASS, address=f"{CROSS}[0,1,2]")
    assert found["agrees"] and not found["changed"]


# --- the page in a browser -------------------------------------------------------------------------------------------


def test_the_source_is_read_by_encoder_decoder_attention(open_live, given):
    page = opened(open_live, token=2)
    show_part(page, "#memory-section", "#cross-map tbody tr")
    assert len(texts(page, "#cross-map thead th")) == len(texts(page, "#memory-tokens .token")) == len(given.memory.ids)
    assert len(texts(page, "#cross-map tbody tr")) == len(given.encode(TARGET))
    cell = page.locator(f"#cross-map [data-address='{CROSS}[0,2,1]']")
    names = [CROSS]
    traced = PageModel.of(given).record(given.encode_fitting(TARGET), TARGET, names)
    assert cell.get_attribute("title").endswith(f": {traced.array(CROSS)[0, 2, 1]:.4f}")
    scroll_through(page)
    assert page.locator("#lens tbody td").count() > 5
    assert page.locator("#contributions tbody tr").count() > 3
    assert page.locator("#recorded-weight").inner_text() == page.locator("#computed-weight").inner_text()


ENCODER = """() => ["attention", "feedforward"]
    .flatMap((name) => [...document.querySelectorAll(`#encoder-${name} td[data-address]`)])
    .map((element) => [element.dataset.address, element.textContent.replace("−", "-")])"""


def test_every_number_of_the_encoder_is_the_number_of_a_trace(open_live, given):
    page = opened(open_live, layer=1, head=1)
    page.locator("#memory-section").scroll_into_view_if_needed()
    page.locator("#memory-tokens button").nth(2).click()
    page.locator("#encoder-feedforward td").first.wait_for()
    settled(page)
    shown = page.evaluate(ENCODER)
    with torch.inference_mode(), Trace(given, "encoder.**") as trace:
        given.decoder(torch.tensor([given.encode_fitting(TARGET)]))
    paths = set()
    for address, text in shown:
        name, _, index = address.rstrip("]").partition("[")
        value = one_row(trace.structure[name], trace[name])[tuple(map(int, index.split(",")))]
        assert text == f"{value:.4f}", address
        paths.add(name)
    wanted = ("attention.core.query", "attention.core.key", "attention.core.value", "feedforward.up")
    assert paths >= {f"encoder.trunk.blocks.1.{name}" for name in wanted}
    assert "Encoder layer 1" in page.locator("#encoder-attention-title").inner_text()


def test_a_number_of_the_encoder_opens_into_its_operands(open_live):
    page = opened(open_live)
    page.locator("#memory-section").scroll_into_view_if_needed()
    page.locator("#encoder-attention .opens").last.wait_for()
    settled(page)
    click_on(page.locator("#encoder-attention td .opens").first)
    assert page.locator("#value code").inner_text().startswith("encoder.")
    assert "follows from its operands" in page.locator("#value-body").inner_text()


def test_a_position_after_the_source_is_refused(server, given):
    error = server.refuse("/explore", **PASS, sections=[f"encoder.at.0.{len(given.memory.ids)}"])
    assert "there is no position" in error["message"]


def test_an_edited_source_is_translated_and_followed(open_live, server):
    page = opened(open_live)
    with page.expect_response("**/v1/translate"):
        page.locator("#source").fill("a dog ran")
    settled(page)
    [expected] = server.ask("/v1/translate", model="fr", input="a dog ran")["data"]
    assert page.locator("#text").input_value() == (expected["translation"] or " ")
    show_part(page, "#memory-section", "#memory-tokens .token")
    assert "".join(texts(page, "#memory-tokens .token")).startswith("a")
    page.locator("#text").fill("le")
    settled(page)
    assert page.locator("#source").input_value() == "a dog ran"


def test_another_model_takes_the_source_as_its_text(open_live):
    page = opened(open_live)
    page.locator("#model").select_option("toy")
    settled(page)
    assert page.locator("#text").input_value() == SOURCE
    assert not page.locator("#source").is_visible() and not page.locator("#memory-section").is_visible()
    with page.expect_response("**/v1/translate"):
        page.locator("#model").select_option("fr")
    settled(page)
    assert page.locator("#source").input_value() == SOURCE and page.locator("#source").is_visible()


def test_python_prints_the_numbers_of_the_page(open_live, folder, capsys):
    page = opened(open_live)
    code = code_of(page, "As Python").replace('"fr"', repr(str(folder)))
    exec(compile(code, "<page>", "exec"), {})
    *tokens, _ = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in tokens] == texts(page, "#next-table tbody .number")[:5]


def test_a_patch_from_a_second_translation(open_live):
    page = opened(open_live, second="la chat")
    unfold(page, "patch")
    click(page, "Compute the map")
    page.locator("#patch-map tbody tr").nth(2).wait_for()
    settled(page)
    assert page.locator("#patch-map .cell").count() == 3 * 8


def test_the_page_of_a_translation_is_accessible(open_live, accessibility_problems):
    page = opened(open_live)
    scroll_through(page)
    assert accessibility_problems(page) == []

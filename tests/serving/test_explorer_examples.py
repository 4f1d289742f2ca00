"""The examples of the live page: of primer, of a sorter, and of the file of a model."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import foretell
from foretell.errors import CheckpointError
from foretell.insight.trace import Trace
from foretell.serving.models import read_examples
from foretell.text import train_tokenizer
from tests.serving.conftest import code_of, settled
from tests.toy import make_toy

PRIMER = Path(str(files("foretell.included") / "primer"))
EXAMPLES = [
    {"title": "first <b>", "text": "abcabc", "layer": 1, "head": 1, "token": 3},
    {"title": "second", "text": "other words"},
]
MOST_INDUCTION = 0.05  # mean weight on the token after the previous occurrence; 0.012 measured


@pytest.fixture(scope="module")
def server(start_server, toy_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("with") / "toy"
    foretell.load(toy_model).save(folder)
    (folder / "examples.json").write_text(json.dumps({"examples": EXAMPLES}), encoding="utf-8")
    return start_server(str(folder), "--memory", "0.05")


def test_the_first_example_is_shown_and_the_others_are_links(open_live):
    page = open_live()
    assert page.locator("#text").input_value() == "abcabc"
    assert [page.locator(f"#{name}-select").input_value() for name in ("token", "layer", "head")] == ["3", "1", "1"]
    assert page.locator("#examples a").all_inner_texts() == ["first <b>", "second"]
    page.get_by_role("link", name="second").click()
    page.locator("#tokens .token:nth-child(11)").wait_for()
    settled(page)
    assert page.locator("#text").input_value() == "other words"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A model of two layers whose vocabulary has digits alone, with an example."""
    tokenizer = train_tokenizer("characters", ["0123456789="])
    folder = tmp_path_factory.mktemp("digits") / "digits"
    make_toy(tokenizer, name="digits", num_layers=2, context_length=16).save(folder)
    examples = [{"title": "sorted", "text": "3141=", "layer": 1, "head": 1, "token": 2}]
    (folder / "examples.json").write_text(json.dumps({"examples": examples}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def two_models(start_server, digits):
    return start_server("primer", str(digits), "runs/pri2=primer", "--memory", "0.05")


def state(page):
    """The text, and the chosen token, layer and head."""
    names = ("text", "token-select", "layer-select", "head-select")
    return [page.locator(f"#{name}").input_value() for name in names]


def open_at(browser, address, fragment=""):
    page = browser.new_page()
    page.goto(f"{address}/{fragment}")
    settled(page)
    return page


DIGITS = ["3141=", "2", "1", "1"]


def test_a_smaller_model_that_cannot_read_the_text_begins_with_its_example(browser, two_models):
    page = open_at(browser, two_models.address, "#text=A+text&layer=3&head=3&token=0")
    page.locator("#model").select_option("digits")
    page.locator("#tokens .token:nth-child(5):last-child").wait_for()
    settled(page)
    assert state(page) == DIGITS and page.locator("#trouble").is_hidden()
    page.locator("#model").select_option("primer")  # which can read digits
    page.wait_for_selector("#facts:has-text('4 layers')")
    settled(page)
    assert state(page)[0] == "3141=" and page.locator("#trouble").is_hidden()
    page.close()


@pytest.mark.parametrize("fragment", ["#model=digits", "#model=digits&layer=9&head=9&text=3141%3D&token=2"])
def test_a_link_without_a_text_begins_with_the_models_example(browser, two_models, fragment):
    page = open_at(browser, two_models.address, fragment)
    assert page.locator("#trouble").inner_text().startswith("The link names layer 9, head 9" if "9" in fragment else "")
    heads = page.locator("#head-select option").count()
    assert state(page) == (DIGITS if fragment.endswith("digits") else ["3141=", "2", "1", str(heads - 1)])
    page.close()


def test_python_opens_what_the_server_was_given(browser, two_models):
    page = open_at(browser, two_models.address, "#model=runs%2Fpri2&text=A+text")
    code = code_of(page, "As Python")
    assert code.startswith("import foretell\nimport torch\n") and 'foretell.load("primer")' in code
    page.close()
    models = {each["name"]: each.get("argument") for each in two_models.client.get("/explore").json()["models"]}
    assert models == {"primer": "primer", "digits": None, "runs/pri2": "primer"}, "no path of this machine"


def test_a_link_that_is_opened_in_the_page_replaces_its_whole_state(browser, two_models):
    change = json.dumps([{"value": "trunk.blocks.0.attention", "scale": 0}])
    page = open_at(
        browser, two_models.address, f"#model=primer&text=The+value&appended=[306]&change={change}&layer=2&token=0"
    )
    assert page.locator("#tokens .token").count() == 3 and page.locator(".chip").count() == 1
    page.evaluate("location.hash = '#model=primer&text=The+value'")
    page.locator("#tokens .token:nth-child(2):last-child").wait_for()
    settled(page)
    assert page.locator(".chip").count() == 0 and state(page) == ["The value", "1", "0", "0"]
    page.evaluate("location.hash = '#lens-section'")
    page.wait_for_url(lambda url: "text=" in url)
    assert state(page) == ["The value", "1", "0", "0"]
    page.close()


def test_a_link_is_stronger_than_the_first_example(open_live):
    page = open_live("#text=linked")
    assert page.locator("#text").input_value() == "linked"


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"examples": [{"title": "x"}]}', r"examples\.0\.text"), ("{", "not readable JSON"), ("{}", "examples")],
)
def test_a_damaged_file_of_examples_is_one_line(tmp_path, content, words):
    (tmp_path / "examples.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=words):
        read_examples(tmp_path)


def test_primers_examples_can_be_shown():
    model = foretell.load("primer")
    for example in read_examples(PRIMER):
        tokens = model.encode_fitting(example.text)
        assert example.layer < model.config.num_layers and example.head < model.config.num_heads
        assert example.token is None or example.token < len(tokens)


def test_primer_has_no_induction_head():
    model = foretell.load("primer")
    length, random = 32, torch.Generator().manual_seed(0)
    once = torch.randint(0, model.tokenizer.vocab_size, (8, length), generator=random)
    names = [f"trunk.blocks.{layer}.attention.core.weights" for layer in range(model.config.num_layers)]
    with torch.inference_mode(), Trace(model, names) as trace:
        model.decoder(once.repeat(1, 2))
    query = torch.arange(length, 2 * length - 1)
    means = torch.stack([trace[name][:, :, query, query - length + 1].mean((0, 2)) for name in names])
    assert means.max() < MOST_INDUCTION

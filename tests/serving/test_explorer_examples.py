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
from tests.serving.conftest import settled

PRIMER = Path(str(files("foretell") / "primer"))
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
    page, complaints = open_live()
    assert page.locator("#text").input_value() == "abcabc"
    assert [page.locator(f"#{name}-select").input_value() for name in ("token", "layer", "head")] == ["3", "1", "1"]
    assert page.locator("#examples a").all_inner_texts() == ["first <b>", "second"]
    page.get_by_role("link", name="second").click()
    page.locator("#tokens .token:nth-child(11)").wait_for()
    settled(page)
    assert page.locator("#text").input_value() == "other words"
    assert complaints == []


def test_a_link_is_stronger_than_the_first_example(open_live):
    page, _ = open_live("#text=linked")
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

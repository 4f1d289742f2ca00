"""One step of gradient descent on the page: the gradients as explained, the new loss, the new probabilities."""

from __future__ import annotations

import pytest
import torch

from foretell.insight.explain.explain_address import explain_value
from foretell.insight.page.learning import learning_step
from foretell.insight.page.write_page import record_all

TEXT = "abcdefgha"


def step_of(model):
    step = learning_step(record_all(model, TEXT))
    assert step is not None
    return step


@pytest.mark.parametrize("changes", [{}, {"num_kv_heads": 1}, {"tie_embeddings": False}])
def test_each_number_of_the_chain_is_the_explained_one(make_model, changes):
    model = make_model("gpt2", **changes)
    step = step_of(model)
    for link in step["chain"]:
        assert explain_value(model, TEXT, link["address"]).stored == pytest.approx(link["value"], rel=1e-5)
        gradient = explain_value(model, TEXT, f"grad:{link['address']}").stored
        assert gradient == pytest.approx(link["gradient"], rel=1e-4, abs=1e-8)
    weight = step["chain"][-1]
    assert weight["new"] == pytest.approx(weight["value"] - step["rate"] * weight["gradient"], rel=1e-5)


def test_the_loss_falls_and_the_model_stays_as_it_is(make_model):
    model = make_model("gpt2")
    before = {path: weight.clone() for path, weight in model.decoder.named_parameters()}
    step = step_of(model)
    assert step["newLoss"] < step["loss"] == pytest.approx(explain_value(model, TEXT, "loss.mean").stored, rel=1e-5)
    assert step["after"][0] > step["before"][0], "the token of the text becomes more probable"
    assert all(torch.equal(weight, before[path]) for path, weight in model.decoder.named_parameters())
    assert all(weight.grad is None for weight in model.decoder.parameters())


def test_a_text_of_one_token_teaches_nothing(make_model):
    assert learning_step(record_all(make_model("gpt2"), "a")) is None


def test_a_file_shows_the_step(make_model, open_page):
    model = make_model("gpt2")
    opened, step = open_page(model, TEXT), step_of(model)
    numbers = opened.page.locator("#learning .chain td.number").all_inner_texts()
    assert numbers[0] == f"{step['loss']:.4f}" and numbers[-1] == f"{step['newLoss']:.4f}"
    opened.page.locator("#here-section a").click()
    opened.page.wait_for_function("() => document.querySelector('#learning').getBoundingClientRect().top < 400")
    assert "token=" not in opened.page.url  # a link to a section keeps the state
    assert opened.complaints == []

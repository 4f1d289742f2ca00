"""Explanations of a quantised model: a weight is its integer, scale and minimum, and the sums are exact."""

from __future__ import annotations

import pytest
import torch

import foretell
from foretell import LanguageModel
from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.explain.steps import Listing
from foretell.insight.explain.textbook_check import check
from foretell.insight.trace import Trace
from foretell.model.quantized_linear import Int4Linear, QuantizedMatrix

TEXT = "The return value"
PATH = "trunk.blocks.1.feedforward.up"


@pytest.fixture(scope="module", params=["int8", "int4"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return foretell.load("primer", dtype="float32").quantize(request.param)


@pytest.mark.parametrize("name", [PATH, "trunk.blocks.0.attention.output", "trunk.blocks.2.feedforward.down", "head"])
def test_a_sum_of_products_shows_how_each_weight_is_stored(model: LanguageModel, name: str) -> None:
    explanation = explain_value(model, TEXT, f"{name}[1,3]")
    assert explanation.agrees
    listing = next(step for step in explanation.steps if isinstance(step, Listing))
    columns = {column: torch.tensor(list(values), dtype=torch.float64) for column, values in listing.columns.items()}
    shift = columns.get("minimum", 0)
    assert ("minimum" in columns) == (name != "head" and isinstance(model.decoder.get_submodule(name), Int4Linear))
    torch.testing.assert_close(columns["integer"] * columns["scale"] + shift, columns["w"], rtol=1e-6, atol=1e-8)
    layer = model.decoder.embed.token if name == "head" else model.decoder.get_submodule(name)
    assert isinstance(layer, QuantizedMatrix)
    assert columns["integer"].tolist() == layer.stored(3)["integer"].tolist()


def test_a_token_vector_is_an_integer_times_a_scale(model: LanguageModel) -> None:
    explanation = explain_value(model, TEXT, "embed.token[1,3]")
    assert explanation.agrees
    layer = model.decoder.embed.token
    assert isinstance(layer, QuantizedMatrix)
    integer = int(layer.stored(model.encode(TEXT)[1])["integer"][3])
    assert f"= {integer} · " in str(explanation)


def test_the_textbook_computes_the_same_logits(model: LanguageModel) -> None:
    assert check(model, TEXT).holds


def test_contributions_add_up_to_the_logit(model: LanguageModel) -> None:
    attribution = direct_logit_attribution(model, TEXT)
    assert attribution.total == pytest.approx(attribution.logit, abs=1e-4)


def test_a_trace_has_the_names_of_the_plain_model(model: LanguageModel) -> None:
    ids = torch.tensor([model.encode(TEXT)])
    with Trace(model, PATH) as trace, torch.no_grad():
        model.decoder(ids)
    assert trace[PATH].shape == (1, 3, model.config.feedforward_width)


def test_a_weight_is_an_integer_times_a_scale(model: LanguageModel) -> None:
    explanation = explain_value(model, TEXT, f"{PATH}.weight[2,3]")
    layer = model.decoder.get_submodule(PATH)
    assert isinstance(layer, QuantizedMatrix)
    assert explanation.stored == pytest.approx(float(layer.weight[2, 3]), rel=1e-6)
    assert f"{layer.stored(2)['integer'][3]} · " in str(explanation)

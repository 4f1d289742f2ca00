"""Every number of every decoder follows from its operands, and one that does not is detected."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
import torch

from foretell.errors import ContextLengthError, UsageError
from foretell.insight.address import Address, parse_address
from foretell.insight.explain.explain_address import explain_value, numbers_of
from foretell.insight.explain.explain_value import RecordedNumbers, shape_of
from foretell.insight.explain.explanation import NumberGroup, NumberKind, Numbers, explain_number
from foretell.insight.explain.steps import unchanged
from foretell.insight.implied_values import implied_values
from foretell.insight.recorded_pass import record
from foretell.insight.replacement import without_heads
from foretell.insight.trace import Trace, trace_names
from foretell.model.structure import model_structure

TEXT = "abcafig!"
WEIGHT = "trunk.blocks.0.attention.core.weights[1,3,2]"
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def random_addresses(recording, seed):
    """A random index for every name of a model, and for every implied value."""
    draw = random.Random(seed)
    for name in trace_names(recording.model):
        yield Address(name, tuple(draw.randrange(size) for size in recording.stored(name).shape))
    for name, value in implied_values(recording.structure).items():
        first, *rest = shape_of(recording, value) or (None,)
        shape = () if first is None else (first - (name == "loss"), *rest)
        yield Address(name, tuple(draw.randrange(size) for size in shape))


def explain_at(recording, address):
    """The explanation of a number in a pass that has recorded everything."""
    numbers = RecordedNumbers(recording.model, recording.structure)
    return explain_number(recording, numbers.kind(recording, address.name), address)


def every_explanation(model, seed=0):
    recording = record(model, TEXT, "**")
    for address in random_addresses(recording, seed):
        yield explain_at(recording, address)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_named_number_of_every_decoder_follows_from_its_operands(config, make_model, dtype):
    for explanation in every_explanation(make_model(config, dtype)):
        assert explanation.agrees, explanation.to_json()


@pytest.mark.parametrize("name", ["gpt1", "llama", "explicit core", "toy that answers"])
def test_every_number_can_be_explained_by_its_address_and_printed(name, make_model):
    model = make_model(name)
    for address in random_addresses(record(model, TEXT, "**"), seed=1):
        explanation = explain_value(model, TEXT, str(address))
        assert explanation.agrees
        assert max(map(len, str(explanation).splitlines())) <= 80, str(explanation)
        assert json.loads(json.dumps(explanation.to_json(), allow_nan=False))["steps"]


@pytest.mark.parametrize("seed", range(20))
def test_a_hidden_key_has_a_score_of_minus_infinity_and_weight_zero(make_model, seed):
    model = make_model("mistral")
    recording = record(model, TEXT, "**")
    draw = random.Random(seed)
    index = (draw.randrange(4), draw.randrange(8), draw.randrange(8))
    is_visible = 0 <= index[1] - index[2] < 3  # of that configuration's window
    masked = explain_at(recording, Address("trunk.blocks.1.attention.core.masked", index))
    weight = explain_at(recording, Address("trunk.blocks.1.attention.core.weights", index))
    assert np.isfinite(masked.stored) == is_visible
    assert (weight.recomputed > 0) == is_visible


def tampered(model, address, tamper):
    """The explanation of a number whose weights were changed after the pass was recorded."""
    recording = record(model, TEXT, "**")
    tamper(model.decoder)
    return explain_at(recording, parse_address(address))


def scaled(path, factor=1.01):
    def change(decoder):
        decoder.get_parameter(path).data.mul_(factor)

    return change


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("embed.token[2,3]", "embed.token.weight"),
        ("embed.position[2,3]", "embed.position.weight"),
        ("trunk.blocks.1.attention.key[4,5]", "trunk.blocks.1.attention.key.weight"),
        ("trunk.blocks.1.attention.key[4,5]", "trunk.blocks.1.attention.key.bias"),
        ("trunk.blocks.0.attention_norm[4,5]", "trunk.blocks.0.attention_norm.weight"),
        ("trunk.blocks.0[4,5]", None),
        ("trunk.norm[1,1]", "trunk.norm.bias"),
        ("head[3,2]", "embed.token.weight"),
    ],
)
def test_a_weight_that_changed_after_the_pass_is_detected(gpt2, address, path):
    tamper = scaled(path) if path else lambda decoder: None
    explanation = tampered(gpt2, address, tamper)
    assert explanation.agrees == (path is None)
    assert ("NOT" in str(explanation)) == (path is not None)


@pytest.mark.parametrize(
    ("address", "name", "change"),
    [
        ("trunk.blocks.0.attention.core[1,3,2]", "trunk.blocks.0.attention.core", without_heads(1)),
        ("trunk.blocks.0.feedforward[3,2]", "trunk.blocks.0.feedforward.down", lambda value: value * 1.001),
        ("trunk.blocks.0.feedforward.activation[3,2]", "trunk.blocks.0.feedforward.activation", lambda x: x + 0.001),
        (WEIGHT, "trunk.blocks.0.attention.core.weights", lambda weights: weights.flip(2)),
        ("trunk.blocks.0[3,2]", "trunk.blocks.0.feedforward_residual", lambda stream: stream + 0.01),
        ("trunk.blocks.1.attention_norm[3,2]", "trunk.blocks.1.attention_norm", lambda x: x * 1.001),
    ],
)
def test_a_replaced_value_is_detected(gpt2, address, name, change):
    assert explain_value(gpt2, TEXT, address).agrees
    with Trace(gpt2, replace={name: change}):
        assert not explain_value(gpt2, TEXT, address).agrees


def test_an_explanation_has_all_operands(gpt2):
    explanation = explain_value(gpt2, TEXT, WEIGHT).to_json()
    assert explanation["meaning"] == ["head 1", "query 3 'a'", "key 2 'c'"]
    products, score, scaled_score, masked, softmax, weight = explanation["steps"]
    assert products["operands"] == {
        "q": "trunk.blocks.0.attention.core.query[1,3,:]",
        "k": "trunk.blocks.0.attention.core.key[1,2,:]",
    }
    columns = products["columns"]
    np.testing.assert_allclose(np.multiply(columns["q"], columns["k"]), columns["q · k"])
    assert score["value"] == pytest.approx(sum(columns["q · k"]))
    assert scaled_score["value"] == pytest.approx(score["value"] / 2)  # the root of a head width of 4
    assert masked["value"] == scaled_score["value"]
    assert softmax["columns"]["masked"][4:] == ["-inf"] * 4
    assert sum(softmax["columns"]["weight"]) == pytest.approx(1)
    assert weight["value"] == explanation["recomputed"] == pytest.approx(explanation["stored"])


def test_tokens_can_be_given_as_text_and_positions_count_from_the_end(gpt2):
    by_text = explain_value(gpt2, TEXT, "probabilities[-1,'!']")
    assert by_text.index == (7, gpt2.tokenizer.encode("!")[0])
    assert by_text.stored == explain_value(gpt2, TEXT, f"probabilities[7,{by_text.index[1]}]").stored


def test_the_loss_is_the_negative_log_probability_of_the_next_token(gpt2):
    following = explain_value(gpt2, TEXT, "probabilities[2,'a']")
    assert explain_value(gpt2, TEXT, "loss[2]").stored == pytest.approx(-np.log(following.stored))


def test_long_listings_are_cut_when_printed_and_complete_in_json(make_model):
    model = make_model("gpt2", width=64)
    explanation = explain_value(model, TEXT, "trunk.blocks.0.attention.query[1,2]")
    assert "… 57 more" in str(explanation)
    assert len(explanation.to_json()["steps"][0]["columns"]["w · x"]) == 64


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("trunk.blocks.0.attention.core.wieghts[1,3,2]", ["near it", "core.weights"]),
        ("nonsense", ["trace MODEL --list"]),
        ("trunk.blocks.*.attention.core.weights[1,3,2]", ["several values", "without a *"]),
        ("trunk.blocks.0.attention.core.weights[1,3]", ["head 0 to 1, query 0 to 7, key 0 to 7", "2 of 3"]),
        ("trunk.blocks.0.attention.core.weights[1,3,8]", ["key 8", "key 0 to 7"]),
        ("trunk.blocks.0.attention.core.weights[2,3,1]", ["head 2", "head 0 to 1"]),
        ("head[-9,0]", ["position -9", "0 to 7"]),
        ("head", ["missing", "head[0,0]"]),
        ("embed[0.5,1]", ["whole numbers"]),
        ("embed['a',1]", ["position", "number"]),
        ("probabilities[0,'ab']", ["2 tokens"]),
        ("probabilities[0,'']", ["0 tokens"]),
        ("loss[7]", ["last", "0 to 6"]),
        ("[1]", ["not an address"]),
        ("", ["not an address"]),
    ],
)
def test_an_invalid_address_is_refused_with_what_exists(gpt2, address, words):
    with pytest.raises(UsageError) as error:
        explain_value(gpt2, TEXT, address)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_or_too_long_text_is_refused(gpt2):
    with pytest.raises(UsageError, match="empty"):
        explain_value(gpt2, "", WEIGHT)
    with pytest.raises(ContextLengthError, match="13 .* 12"):
        explain_value(gpt2, "a" * 13, WEIGHT)


def test_a_model_with_active_dropout_is_refused(make_model):
    model = make_model("explicit core")
    model.decoder.train()
    with pytest.raises(UsageError, match="training mode"):
        explain_value(model, TEXT, WEIGHT)


def test_the_notebook_display_has_formulas_and_no_script(gpt2):
    explanation = explain_value(gpt2, TEXT, WEIGHT)
    html = explanation._repr_html_()
    assert "<math" in html
    assert "<script" not in html
    assert "<mfrac" in html


def opened(pattern, entry, head_width):
    """The address of one operand of a listing, from the operands' pattern and the entry of the first column."""
    address = pattern.partition(", all heads")[0]
    if address.count(":") == 2:
        head, element = divmod(entry, head_width)
        return address.replace(":", str(head), 1).replace(":", str(element), 1)
    return re.sub(r"(\d*):\d*", lambda bounds: str(int(bounds[1] or 0) + entry), address)


@pytest.mark.parametrize("name", ["gpt1", "llama", "explicit core", "mistral", "gpt2"])
def test_every_operand_opens_into_its_own_explanation_down_to_weights(name, make_model):
    model, weights = make_model(name), 0
    draw = random.Random(3)
    for explanation in every_explanation(model, seed=2):
        for step in explanation.to_json()["steps"]:
            for column, pattern in step.get("operands", {}).items() if "columns" in step else ():
                first, *_ = step["columns"].values()
                row = draw.randrange(len(first))
                operand = explain_value(model, TEXT, opened(pattern, first[row], model.config.head_width))
                assert operand.agrees
                assert operand.stored == pytest.approx(float(step["columns"][column][row]), rel=1e-5, abs=1e-6)
                weights += "weight: training" in str(operand)
    assert weights > 3


def test_weights_have_addresses(gpt2):
    weight = gpt2.decoder.trunk.blocks[0].attention.query.weight.detach()
    explanation = explain_value(gpt2, TEXT, "trunk.blocks.0.attention.query.weight[2,-1]")
    assert explanation.stored == float(weight[2, -1]) == explanation.recomputed
    assert explanation.meaning == ("row 2", f"column {weight.shape[1] - 1}")
    with pytest.raises(UsageError, match="column 99"):
        explain_value(gpt2, TEXT, "trunk.blocks.0.attention.query.weight[2,99]")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_listed_name_has_numbers_with_an_explanation(name, make_model):
    numbers = numbers_of(model := make_model(name))
    for name in random.Random(5).sample(list(numbers.groups), 60):
        group, full = numbers.find(name), numbers.find(name).full_name(name)
        kind = group.kind(group.record(model, TEXT, full, numbers.structure), full)
        assert len(kind.sizes) == len(kind.dimensions), name
        stored, working = kind.explain((0,) * len(kind.sizes))
        assert stored == pytest.approx(working.value, rel=1e-4, abs=1e-4), name


def test_numbers_of_another_group_are_explained_by_their_names(gpt2):
    class Positions(NumberGroup):
        names = ("positions",)

        def needs(self, name):
            return ()

        def kind(self, recording, name):
            return NumberKind(("position",), [len(recording.ids)], lambda index: (index[0], unchanged("", index[0])))

    structure = model_structure(gpt2.decoder)
    numbers = Numbers(gpt2, structure, [RecordedNumbers(gpt2, structure), Positions()])
    explanation = numbers.explain(TEXT, "positions[-1]")
    assert (explanation.address, explanation.stored) == ("positions[7]", 7)
    assert explanation.meaning == ("position 7 '!'",) and numbers.explain(TEXT, "loss[2]").agrees
    with pytest.raises(UsageError, match="near it: positions"):
        numbers.explain(TEXT, "position[0]")
    with pytest.raises(UsageError, match=r"no value is named 'positions\(x=1\)'"):
        numbers.explain(TEXT, "positions(x=1)[0]")

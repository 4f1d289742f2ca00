"""Gradients of values and weights: by autograd, by their operands, and by central differences."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch

import foretell
from foretell.errors import UsageError
from foretell.insight.explain.explain_address import explain_value, numbers_of, weight_shapes
from foretell.insight.explain.gradient_steps import same_tensor
from foretell.insight.recorded_pass import record
from foretell.insight.trace import Trace
from foretell.model.quantized_linear import quantized_layers
from foretell.model.structure import model_structure
from tests.toy import make_toy

TEXT = "abcafig!"
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
SOME, MANY = 6, 260  # random addresses for each configuration and dtype
CONSTANTS = (
    "mean",
    "variance",
    "mean_square",
    "cosine",
    "sine",
    "local_cosine",
    "local_sine",
)  # values without a gradient
TARGETS = ("loss.mean", "loss[3]", "logits[2,4]", "probabilities[2,4]", "logprobs[5,'c']", "entropy[2]")
WEIGHT = "trunk.blocks.1.attention.value.weight"


def shapes_with_gradients(model):
    """The shapes of all values and weights that have a gradient, by name."""
    names = [name for name in model_structure(model.decoder).values if name.rpartition(".")[2] not in CONSTANTS]
    if model.decoder.config.position == "sinusoidal":
        names.remove("embed.position")
    recording = record(model, TEXT, names)
    return {name: recording.stored(name).shape for name in names} | weight_shapes(model.decoder)


def random_gradients(model, seed, count):
    """Explanations of random gradients, with the name of the target of each."""
    draw, shapes = random.Random(seed), shapes_with_gradients(model)
    numbers = {target: numbers_of(model, of=target) for target in TARGETS}
    for name in (draw.choice(list(shapes)) for _ in range(count)):
        index, target = ",".join(str(draw.randrange(size)) for size in shapes[name]), draw.choice(TARGETS)
        yield target, numbers[target].explain(TEXT, f"grad:{name}[{index}]")


def check_random_gradients(model, seed, count):
    for target, explanation in random_gradients(model, seed, count):
        assert explanation.has_operands
        assert explanation.agrees, (target, str(explanation))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_gradients_of_every_decoder_follow_from_their_operands(config, make_model, dtype):
    check_random_gradients(make_model(config, dtype), 0, SOME)


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ten_thousand_gradients_of_every_decoder_follow_from_their_operands(config, make_model, dtype):
    check_random_gradients(make_model(config, dtype), 1, MANY)


@pytest.mark.parametrize("activation", ["relu", "relu2", "silu", "gelu_erf", "gelu_tanh"])
@pytest.mark.parametrize("feedforward", ["mlp", "gated"])
def test_gradients_through_every_activation_follow_from_their_operands(make_model, activation, feedforward):
    model = make_model("gpt2", torch.float64, activation=activation, feedforward=feedforward)
    for name in ("up", "activation"):
        assert explain_value(model, TEXT, f"grad:trunk.blocks.1.feedforward.{name}[3,7]").agrees


def number_with(model, target, name, index, change):
    """The target when one number of a value or a weight is changed."""
    weights = dict(model.decoder.named_parameters())
    if name in weights:
        with torch.no_grad():
            weights[name][index] += change
        number = explain_value(model, TEXT, target).stored
        with torch.no_grad():
            weights[name][index] -= change
        return number

    def changed(value):
        after = value.clone()
        place = iter(index)
        after[
            tuple(0 if letter in ("B", "1") else next(place) for letter in model_structure(model.decoder)[name].dims)
        ] += change
        return after

    with Trace(model, replace={name: changed}):
        return explain_value(model, TEXT, target).stored


def test_gradients_are_those_of_central_differences(config, make_model):
    model, change = make_model(config, torch.float64), 1e-5
    structure = model_structure(model.decoder)
    for target, explanation in random_gradients(model, 2, SOME):
        name = explanation.name.removeprefix("grad:")
        if name in structure.values and len(same_tensor(structure, name)) > 1:
            continue  # a replaced output of a module without effect is not the tensor that others read
        up, down = (number_with(model, target, name, explanation.index, sign * change) for sign in (1, -1))
        group = numbers_of(model, of=target).find(explanation.name)
        recording = group.record(model, TEXT, explanation.name, structure)
        largest = float(gradient_tensor(recording, name).abs().max())
        rounding = 2e-16 * max(abs(up), 1.0) / change  # of the difference of two numbers in float64
        assert abs((up - down) / (2 * change) - explanation.stored) <= 1e-6 * largest + rounding, explanation.address


def gradient_tensor(recording, name):
    if name == "head":
        return torch.stack([recording.logit_gradients(position) for position in range(len(recording.ids))])
    return recording.stored(f"grad:{name}")


def test_a_reader_walks_from_a_weight_to_the_loss_by_the_addresses_of_each_step(gpt2):
    address, visited = f"grad:{WEIGHT}[3,5]", []
    while address:
        explanation = explain_value(gpt2, TEXT, address)
        assert explanation.agrees
        visited.append(explanation.name)
        found = re.search(r"grad:([\w.]+)\[([^]]*)\]", json.dumps(explanation.to_json()["steps"]))
        address = found and f"grad:{found[1]}[{re.sub('head|query|:', '1', found[2])}]"
    assert visited[:4] == [
        f"grad:{WEIGHT}",
        "grad:trunk.blocks.1.attention.value",
        "grad:trunk.blocks.1.attention.core.value",
        "grad:trunk.blocks.1.attention.core",
    ]
    assert visited[-2:] == ["grad:trunk.norm", "grad:head"]


def test_the_gradients_of_the_model_are_not_changed(gpt2):
    weight = gpt2.decoder.get_parameter(WEIGHT)
    weight.requires_grad_(False)
    assert explain_value(gpt2, TEXT, f"grad:{WEIGHT}[3,5]").stored != 0
    assert not weight.requires_grad
    assert all(parameter.grad is None for parameter in gpt2.decoder.parameters())


def test_a_weight_that_changed_after_the_pass_is_detected(gpt2):
    numbers = numbers_of(gpt2)
    group = numbers.find("grad:trunk.norm")
    recording = group.record(gpt2, TEXT, "grad:trunk.norm", numbers.structure)
    with torch.no_grad():
        gpt2.decoder.get_parameter("embed.token.weight").mul_(1.01)
    stored, working = group.kind(recording, "grad:trunk.norm").explain((3, 2))
    assert abs(stored - working.value) > 1e-4 * abs(stored)


def test_long_sums_show_the_largest_products_first():
    model = make_toy(width=96, num_layers=1)
    listing = explain_value(model, "abcd", "grad:trunk.norm[1,3]").to_json()["steps"][0]
    products = [abs(product) for product in listing["columns"]["g · w"]]
    assert len(products) > 64
    assert products == sorted(products, reverse=True)


@pytest.mark.parametrize(
    ("address", "of", "words"),
    [
        ("grad:trunk.blocks.1[0,0]", "loss[9]", "position 9 of loss"),
        ("grad:trunk.blocks.1[0,0]", "trunk.blocks.0[0,0]", "does not depend on it"),
        ("grad:trunk.blocks.0.attention_norm.mean[0]", None, "no value is named"),
        ("grad:trunk.blocks.1[0,0]", "contributions[0,1,2]", "not the output, a value or a loss of a pass"),
        ("grad:trunk.blocks.1[0,99]", None, "out of range"),
        ("grad:trunk.blocks.1[0]", None, "1 of 2 numbers are given"),
        ("grad:trunk.block.1[0,0]", None, "near it: grad:trunk.blocks.1"),
    ],
)
def test_a_gradient_that_does_not_exist_is_one_line(gpt2, address, of, words):
    with pytest.raises(UsageError) as error:
        explain_value(gpt2, TEXT, address, of=of)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_integers_have_no_gradient_but_values_do():
    model = foretell.load("primer", dtype="float32").quantize("int8")
    path = next(iter(quantized_layers(model.decoder)))
    with pytest.raises(UsageError, match="stored as integers, which have no gradient"):
        explain_value(model, TEXT, f"grad:{path}.weight[0,0]")
    for name in ("trunk.blocks.0.attention.core.query[0,3,1]", "trunk.blocks.0[2,3]", "embed.token[1,1]"):
        assert explain_value(model, TEXT, f"grad:{name}").agrees

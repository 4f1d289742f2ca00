"""Numbers of the logit lens and of neurons follow from their operands, which open down to weights."""

from __future__ import annotations

import re

import pytest
import torch

import foretell
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.errors import UsageError
from foretell.generation.filters import Prefix
from foretell.generation.sampling import Sampler
from foretell.insight.attribution.logit_lens import lens_logits
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.explain.explain_value import operands_of
from foretell.insight.implied_values import implied_values
from foretell.insight.page.write_page import page_html
from foretell.model.structure import model_structure

TEXT = "abcafig!"
BLOCK = "trunk.blocks.0"
ADDRESS = re.compile(r"[\w.]+\[-?\d+(?:,-?\d+)*\]")


def opened(explanation):
    """The addresses of the operands of an explanation, at the first row of a listing."""
    for step in explanation.to_json()["steps"]:
        for address in [*step.get("operands", {}).values(), step.get("note", ""), step.get("remark", "")]:
            yield from ADDRESS.findall(address.replace(":", "0"))


def every_operand(model, address, depth=3):
    """An address with the addresses that it opens, and what they open."""
    yield address
    if depth:
        for operand in dict.fromkeys(opened(explain_value(model, TEXT, address))):
            yield from every_operand(model, operand, depth - 1)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize(
    "address",
    [
        f"{BLOCK}.vector_norm[2]",
        *(f"{BLOCK}.attention.{name}.vector_norm[2]" for name in ("query", "key", "value")),
        f"{BLOCK}.attention.core.vector_norm[1,2]",
        f"{BLOCK}.attention_norm.divisor[2]",
        f"{BLOCK}.attention.core.weights.divisor[1,3]",
        f"{BLOCK}.attention.core.weights.exponentials[1,3,2]",
        f"{BLOCK}.attention.core.weights.terms[1,3,2,1]",
        "probabilities.divisor[3]",
        "entropy[3]",
        "loss.mean",
        f"{BLOCK}.lens.probabilities[3,2]",
        f"{BLOCK}.lens.entropy[3]",
        f"{BLOCK}.lens.logits[3,2]",
        f"{BLOCK}.neurons.contributions[3,5,2]",
        f"{BLOCK}.neurons.vector[3,5,2]",
        f"{BLOCK}.neurons.vector_norm[3,5]",
    ],
)
def test_a_number_opens_down_to_weights(make_model, name, address):
    model = make_model(name)
    known = dict.fromkeys(every_operand(model, address))
    assert len(known) > 1
    for each in known:
        explanation = explain_value(model, TEXT, each)
        assert explanation.agrees, each
        assert max(map(len, str(explanation).splitlines())) <= 80, str(explanation)


@torch.inference_mode()
def test_the_lens_has_the_numbers_of_the_norm_and_the_head(gpt2):
    with foretell.Trace(gpt2, BLOCK) as trace:
        gpt2.decoder(torch.tensor([gpt2.encode(TEXT)]))
    logits = lens_logits(gpt2.decoder, trace[BLOCK])[0]
    for token in (0, 4):
        explanation = explain_value(gpt2, TEXT, f"{BLOCK}.lens.head[3,{token}]")
        assert explanation.stored == float(logits[3, token])
        assert explanation.meaning[0] == f"the logit lens of {BLOCK}"
        shares = explain_value(gpt2, TEXT, f"{BLOCK}.lens.probabilities[3,{token}]")
        assert shares.stored == pytest.approx(float(logits[3].double().softmax(-1)[token]))
    first, *_ = explain_value(gpt2, TEXT, f"{BLOCK}.lens.trunk.norm[3,0]").to_json()["steps"]
    assert f"{BLOCK}[3,:]" in first["operands"].values()


@torch.inference_mode()
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 0},
        {"top_k": 3},
        {"top_p": 0.5},
        {"min_p": 0.3},
        {"temperature": 1.7, "top_k": 6, "top_p": 0.8, "min_p": 0.1},
    ],
)
def test_filtered_probabilities_are_those_of_the_sampler(gpt2, settings):
    logits = gpt2.decoder(torch.tensor([gpt2.encode(TEXT)]))[0, 3]
    filters = make_section(SamplingConfig, {"temperature": 1, "top_k": None, "top_p": 1, "min_p": 0, **settings})
    sampler = Sampler(filters, gpt2.tokenizer.vocab_size)
    *_, (_, filtered) = sampler.stages(logits[None, : sampler.vocab_size], [Prefix([])])
    expected, plain = filtered[0].softmax(-1), gpt2.log_probabilities(logits).exp()
    written = ",".join(f"{name}={value}" for name, value in settings.items())
    for token, share in enumerate(expected.tolist()):
        explanation = explain_value(gpt2, TEXT, f"probabilities.filtered({written})[3,{token}]")
        assert explanation.stored == pytest.approx(share, rel=1e-12, abs=0) and explanation.agrees
        assert max(map(len, str(explanation).splitlines())) <= 80
    kept = explain_value(gpt2, TEXT, f"probabilities.kept({written})[3]")
    assert kept.stored == pytest.approx(float(plain[expected > 0].sum())) and kept.agrees
    listing = kept.to_json()["steps"][0]
    assert listing["operands"] == {"probability": "probabilities[3,:]"}
    assert len(listing["columns"]["number"]) == int((expected > 0).sum())


@torch.inference_mode()
def test_a_neuron_adds_its_column_times_its_activation(gpt2):
    names = [f"{BLOCK}.feedforward.activation", f"{BLOCK}.feedforward"]
    with foretell.Trace(gpt2, names) as trace:
        gpt2.decoder(torch.tensor([gpt2.encode(TEXT)]))
    down = gpt2.decoder.get_submodule(f"{BLOCK}.feedforward.down")
    vectors = down.weight.double() * trace[names[0]][0, 3].double()  # (D, F)
    torch.testing.assert_close((vectors.sum(-1) + down.bias).float(), trace[names[1]][0, 3])
    assert explain_value(gpt2, TEXT, f"{BLOCK}.neurons.written[3,5,2]").stored == float(vectors[2, 5])
    norm = explain_value(gpt2, TEXT, f"{BLOCK}.neurons.vector_norm[3,5]").stored
    assert norm == pytest.approx(float(vectors[:, 5].norm()))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (f"{BLOCK}.neurons.contribution[0,0,0]", "near it: .*neurons.contributions"),
        (f"{BLOCK}.neurons.written[0,99999,0]", "neuron 99999"),
        (f"{BLOCK}.lens.embed[0,0]", "no value is named"),
        (f"{BLOCK}.lens.probabilities[99,0]", "position 99"),
        ("trunk.blocks.7.lens.probabilities[0,0]", "no value is named"),
        ("loss.mean[0]", "loss.mean is one number; give it without an index"),
        ("probabilities.filtered(temprature=1)[0,0]", "no setting 'temprature'.*temperature"),
        ("probabilities.filtered(seed=1)[0,0]", "no setting 'seed'"),
        ("probabilities.filtered(top_k)[0,0]", "'' is not a number"),
        ("probabilities.filtered(top_k=0)[0,0]", "top_k = 0"),
        ("probabilities.filtered(top_k=2)[0]", "1 of 2 numbers"),
        ("probabilities.kept(top_p=2)[99]", "position 99"),
        ("next_value.mean", "no value is named"),
    ],
)
def test_an_invalid_address_is_refused(gpt2, address, words):
    with pytest.raises(UsageError, match=words):
        explain_value(gpt2, TEXT, address)


def test_a_norm_records_its_vector_alone(make_model):
    structure = model_structure(make_model("gpt2").decoder)
    norm = implied_values(structure)[f"{BLOCK}.vector_norm"]
    assert list(operands_of(structure, norm)) == [BLOCK]


def test_a_text_of_one_token_has_no_mean_loss(gpt2):
    with pytest.raises(UsageError, match="one token"):
        explain_value(gpt2, "a", "loss.mean")


def test_neurons_that_the_head_does_not_read_have_no_direct_contribution(make_model):
    model = make_model("gpt2", attention_residual=False)
    for address in (f"{BLOCK}.neurons.vector[3,5,2]", f"{BLOCK}.neurons.contributions[3,5,4]"):
        with pytest.raises(UsageError, match="is not part of the stream that the head reads"):
            explain_value(model, TEXT, address)
    assert TEXT in page_html(model, TEXT)

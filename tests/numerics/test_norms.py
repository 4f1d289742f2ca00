"""Each norm is one record: in torch, in NumPy and in statistics, under a name that the configuration has."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from foretell.config.model import ModelConfig
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.norm import PlainNorm, make_norm
from foretell.numerics.norms import NORMS, Norm, Statistic
from foretell.text import train_tokenizer
from foretell.textbook.family import decoder_forward

CONFIG = ModelConfig(num_layers=2, num_heads=2, width=8, context_length=8, vocab_size=11)
TEXT = "abcadjb"


def max_norm(x, weight, _, epsilon):
    return x / (abs(x).max() + epsilon) * weight


MAX_NORM = Norm(
    "max_norm",
    max_norm,
    {"largest": Statistic(lambda x: x.abs().amax(-1, keepdim=True), lambda x: {"|x|": abs(x)}, is_largest=True)},
    has_root=False,
)


def test_the_configuration_has_these_names():
    assert set(get_args(ModelConfig.model_fields["norm"].annotation)) == {*NORMS, "none"}


@pytest.mark.parametrize("name", NORMS)
def test_numpy_torchs_kernel_and_the_statistics_give_the_same_vector(name):
    x, weight, bias = (np.random.default_rng(seed).normal(size=8) for seed in range(3))
    record, config = NORMS[name], CONFIG.replaced(norm=name, norm_epsilon=0.1)
    expected = record.compute(x, weight, bias if record.has_bias else 0.0, 0.1)
    for norm in (make_norm(config, 8), PlainNorm(record, 8, 0.1, record.has_bias)):
        parameters = {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
        norm.double().load_state_dict({path: parameters[path] for path in norm.state_dict()})
        assert norm(torch.from_numpy(x)).detach().numpy() == pytest.approx(expected, rel=1e-12)
    for statistic in record.statistics.values():
        *_, terms = statistic.columns(x).values()
        assert terms.mean() == pytest.approx(statistic.tensor(torch.from_numpy(x)).item(), rel=1e-12)


def test_no_norm_returns_its_input():
    x = torch.randn(3, 8)
    assert make_norm(CONFIG.replaced(norm="none"), 8)(x) is x


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_returns_the_dtype_of_its_input(name):
    norm = make_norm(CONFIG.replaced(norm=name), 8)
    assert norm.bfloat16()(torch.ones(8, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """A model with a norm that only this file declares."""
    monkeypatch.setitem(NORMS, "maxnorm", MAX_NORM)
    torch.manual_seed(1)
    config = CONFIG.model_copy(update={"norm": "maxnorm", "qk_norm": True, "norm_epsilon": 0.1})
    return LanguageModel(Decoder(config), train_tokenizer("characters", ["abcdefghij"]))


def test_a_new_norm_trains(model):
    ids = torch.tensor([model.encode(TEXT)])
    optimizer = torch.optim.SGD(model.decoder.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        loss = F.cross_entropy(model.decoder(ids[:, :-1])[0], ids[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert not torch.equal(model.decoder.trunk.norm.weight, torch.ones(8))


def test_a_new_norm_equals_the_textbooks(model):
    ids, weights = model.encode(TEXT), {path: x.double() for path, x in model.decoder.state_dict().items()}
    logits = model.decoder.double()(torch.tensor([ids]))[0].detach().numpy()
    textbook = decoder_forward(model.decoder.config, {path: x.numpy() for path, x in weights.items()}, ids)
    assert textbook == pytest.approx(logits, rel=1e-9, abs=1e-12)


def test_a_new_norm_is_traced_and_explained(model):
    with Trace(model, "**") as trace:
        model.decoder(torch.tensor([model.encode(TEXT)]))
    assert trace["trunk.norm.largest"].shape == (1, len(TEXT), 1)
    block = "trunk.blocks.0"
    for address in ("trunk.norm[3,2]", "trunk.norm.largest[3]", f"{block}.attention.query_norm[1,3,2]"):
        explanation = explain_value(model, TEXT, address)
        assert explanation.agrees, explanation.to_json()
    assert "largest = max" in str(explain_value(model, TEXT, f"{block}.attention_norm.largest[3]"))

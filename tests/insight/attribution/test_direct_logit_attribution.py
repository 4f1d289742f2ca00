"""Direct contributions add up to the logit, in every member of the family, and each is what its part alone brings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from foretell.config import ModelConfig
from foretell.errors import TokenizerError, UsageError
from foretell.insight.attribution.direct_logit_attribution import (
    SUM_BOUND,
    DirectLogitAttribution,
    direct_logit_attribution,
)
from foretell.insight.attribution.prediction import make_prediction
from foretell.insight.attribution.stream_parts import FREEZERS, FrozenNorm
from foretell.insight.replacement import without_heads
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.model.norm import LayerNorm

MakeModel = Callable[..., LanguageModel]
PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
MORE: dict[str, dict[str, Any]] = {  # choices that the shared configurations do not combine
    "every bias": {"bias": {"attention": True, "head": True}, "tie_embeddings": False},
    "no bias, norm after": {"bias": False, "norm_placement": "post"},
    "sinusoids, norm after": {"position": "sinusoidal", "norm": "rmsnorm", "norm_placement": "post"},
    "gated, norm after": {"feedforward": "gated", "norm_placement": "post", "position": "rotary"},
    "nothing goes on but updates": {"attention_residual": False, "attention_output": False, "norm_placement": "post"},
    "no residual, then feed-forward": {"attention_residual": False, "bias": {"head": True}},
}


def excess(model: LanguageModel, found: DirectLogitAttribution, at: int) -> float:
    """How far the sum is from the logit, as a share of the stated bound."""
    with torch.no_grad():
        largest = float(make_prediction(model, "abcadjb", at).logits().abs().max())
    return abs(found.total - found.logit) / (SUM_BOUND * torch.finfo(model.dtype).eps * largest)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_contributions_add_up_to_the_logit_of_any_token_at_any_position(
    config: ModelConfig, precision: str, make_model: MakeModel, text: str
) -> None:
    model = make_model(config, PRECISIONS[precision])
    for at in (0, 3, 6):
        for token in (0, 7):
            assert excess(model, direct_logit_attribution(model, text, token, at), at) <= 1
            assert excess(model, direct_logit_attribution(model, text, token, at, against=4), at) <= 1


@pytest.mark.parametrize("changes", MORE.values(), ids=MORE)
def test_contributions_add_up_whatever_is_combined(changes: dict[str, Any], make_model: MakeModel, text: str) -> None:
    model = make_model("gpt2", torch.float64, **changes)
    for token in range(11):
        found = direct_logit_attribution(model, text, token)
        assert found.total == pytest.approx(found.logit, abs=1e-10)


def test_in_float64_the_sum_is_the_logit_to_ten_digits(config: ModelConfig, make_model: MakeModel, text: str) -> None:
    model = make_model(config, torch.float64)
    with torch.no_grad():
        logits = model.decoder(torch.tensor([model.tokenizer.encode(text)]))[0, -1]
    found = direct_logit_attribution(model, text, 5)
    assert found.logit == pytest.approx(float(logits[5]), abs=1e-12)
    assert found.total == pytest.approx(float(logits[5]), abs=1e-10)
    assert sum(part.value for part in found.parts) == pytest.approx(found.total, abs=1e-12)


def test_a_part_that_is_forgotten_would_be_noticed(make_model: MakeModel, text: str) -> None:
    model = make_model("gpt2", bias={"head": True}, tie_embeddings=False)
    found = direct_logit_attribution(model, text, 5)
    for part in found.parts:
        without = replace(found, total=found.total - part.value)
        assert excess(model, without, -1) > 1, part.name


def test_a_norm_that_does_not_centre_would_be_noticed(make_model: MakeModel, text: str, monkeypatch) -> None:
    freeze = FREEZERS[LayerNorm]

    def without_centring(*arguments: Any) -> FrozenNorm:
        norm = freeze(*arguments)
        return FrozenNorm(norm.scale, False, norm.shift)

    monkeypatch.setitem(FREEZERS, LayerNorm, without_centring)
    model = make_model("gpt2")
    assert excess(model, direct_logit_attribution(model, text, 5), -1) > 1


def test_parts_have_the_addresses_that_everything_has(make_model: MakeModel, text: str) -> None:
    names = [part.name for part in direct_logit_attribution(make_model("gpt2", bias={"head": True}), text).parts]
    block = [f"attention.core[{head}]" for head in (0, 1)] + ["attention.output.bias", "feedforward"]
    blocks = [f"trunk.blocks.{layer}.{name}" for layer in (0, 1) for name in block]
    assert names == ["embed.token", "embed.position", *blocks, "trunk.norm.bias", "head.bias"]


def test_a_block_without_a_residual_lets_nothing_before_it_through(make_model: MakeModel, text: str) -> None:
    names = [part.name for part in direct_logit_attribution(make_model("smallest"), text).parts]
    assert names == ["trunk.blocks.1.attention.core[0]"]


def test_a_contribution_is_what_the_logit_loses_where_nothing_else_comes_in_between(
    make_model: MakeModel, text
) -> None:
    """Without norms, what the last block adds reaches the logit alone: leaving it out takes away just that."""
    model = make_model("gpt2", torch.float64, norm="none")
    found = direct_logit_attribution(model, text, 3)
    last = "trunk.blocks.1.feedforward"
    with torch.no_grad(), Trace(model, replace={last: torch.zeros(8)}):
        without = float(make_prediction(model, text).logits()[3])
    value = next(part.value for part in found.parts if part.name == last)
    assert found.logit - without == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("head", range(4))
def test_a_heads_contribution_is_what_the_logit_loses_without_that_head(make_model: MakeModel, text, head: int) -> None:
    model = make_model("llama", torch.float64, norm="none", feedforward="none")
    core = "trunk.blocks.1.attention.core"
    found = direct_logit_attribution(model, text, 3)
    with torch.no_grad(), Trace(model, replace={core: without_heads(head)}):
        without = float(make_prediction(model, text).logits()[3])
    value = next(part.value for part in found.parts if part.name == f"{core}[{head}]")
    assert found.logit - without == pytest.approx(value, abs=1e-12)


def test_against_another_token_every_number_is_a_difference(make_model: MakeModel, text: str) -> None:
    model = make_model("gpt2", torch.float64, bias={"head": True})
    first, second = direct_logit_attribution(model, text, "b"), direct_logit_attribution(model, text, "e")
    both = direct_logit_attribution(model, text, "b", against="e")
    assert both.logit == pytest.approx(first.logit - second.logit)
    for part, one, other in zip(both.parts, first.parts, second.parts, strict=True):
        assert part.value == pytest.approx(one.value - other.value, abs=1e-12)


def test_without_a_token_it_is_the_likeliest(model: LanguageModel, text: str) -> None:
    with torch.no_grad():
        best = int(make_prediction(model, text, 2).logits().argmax())
    found = direct_logit_attribution(model, text, at=2)
    assert (found.token, found.text) == (best, model.tokenizer.text_of(best))


# --- for people -------------------------------------------------------------------------------------------------------


def test_printed_the_largest_come_first_and_the_others_are_one_line(make_model: MakeModel, text: str) -> None:
    found = direct_logit_attribution(make_model("llama", num_layers=6), text, "c")
    lines = str(found).splitlines()
    sizes = [abs(float(line.split()[0].replace("−", "-"))) for line in lines[5:21]]
    assert sizes == sorted(sizes, reverse=True)
    assert "the other 15 together" in lines[21]
    assert lines[-2].endswith("their sum")
    assert lines[-1].endswith("the model's own")
    assert lines[-2].split()[0] == lines[-1].split()[0]
    assert max(map(len, lines)) <= 80


def test_bars_show_the_sign(make_model: MakeModel, text: str) -> None:
    for line in str(direct_logit_attribution(make_model("gpt2"), text, "c")).splitlines()[5:-3]:
        assert ("█" in line) == (line[0] == "+")
        assert ("▒" in line) == (line[0] == "−")


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        ({"token": "ab"}, UsageError, "'ab' is not one token of this model but 2: 'a', 'b'; give a single one"),
        ({"token": ""}, UsageError, "'' is not one token of this model but 0: none"),
        ({"token": 99}, TokenizerError, "99 is not a token id"),
        ({"against": "zz"}, TokenizerError, "z"),
        ({"at": 7}, UsageError, r"position 7 is outside the text, which has 7 tokens \(0 to 6\)"),
    ],
)
def test_what_cannot_be_asked_is_one_line(make_model: MakeModel, text: str, ask, error, words) -> None:
    with pytest.raises(error, match=words):
        direct_logit_attribution(make_model("gpt2"), text, **ask)


def test_a_model_in_training_is_not_looked_into(make_model: MakeModel, text: str) -> None:
    model = make_model("explicit core")
    model.decoder.train()
    with pytest.raises(UsageError, match="dropout"):
        direct_logit_attribution(model, text)

"""Direct contributions add up to the logit in every configuration, and each is that of its part alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.errors import TokenizerError, UsageError
from foretell.insight.attribution.direct_logit_attribution import (
    SUM_BOUND,
    DirectLogitAttribution,
    direct_logit_attribution,
)
from foretell.insight.recorded_pass import record
from foretell.insight.replacement import without_heads
from foretell.insight.stream_terms import StreamDecomposition, names_by_token
from foretell.insight.trace import Trace, trace_names
from foretell.language_model import LanguageModel
from foretell.model.norm import FrozenNorm, LayerNorm
from foretell.model.structure import model_structure
from tests.insight.attribution.conftest import MakeModel

PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
MORE: dict[str, dict[str, Any]] = {  # combinations that the shared configurations lack
    "every bias": {"bias": {"attention": True, "head": True}, "tie_embeddings": False},
    "no bias, norm after": {"bias": False, "norm_placement": "post"},
    "sinusoids, norm after": {"position": "sinusoidal", "norm": "rmsnorm", "norm_placement": "post"},
    "gated, norm after": {"feedforward": "gated", "norm_placement": "post", "position": "rotary"},
    "updates replace the stream": {"attention_residual": False, "attention_output": False, "norm_placement": "post"},
    "no residual, then feed-forward": {"attention_residual": False, "bias": {"head": True}},
}


def excess(model: LanguageModel, attribution: DirectLogitAttribution, at: int) -> float:
    """The difference of sum and logit, as a share of the stated bound."""
    with torch.no_grad():
        largest = float(record(model, "abcadjb", []).next_logits(at).abs().max())
    return abs(attribution.total - attribution.logit) / (SUM_BOUND * torch.finfo(model.dtype).eps * largest)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_contributions_add_up_to_the_logit_of_any_token_at_any_position(
    config: ModelConfig, precision: str, make_model: MakeModel, text: str
) -> None:
    model = make_model(config, PRECISIONS[precision])
    for at in (0, 3, 6):
        for token in (0, 7):
            assert excess(model, direct_logit_attribution(model, text, token, at), at) <= 1
            assert excess(model, direct_logit_attribution(model, text, token, at, against=4), at) <= 1


def by_token_and_part(model: LanguageModel, text: str, at: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """The contributions (2 N, T) of N parts by token, and (2 N,) of the parts, to the mean of two directions."""
    structure = model_structure(model.decoder)
    stream = StreamDecomposition(model.decoder, structure).stream(*structure["head"].reads)
    with torch.inference_mode(), Trace(model, names_by_token(stream, structure)) as trace:
        model(model.encode(text))
        count = at.stop - at.start
        directions = model.decoder.get_parameter("head.weight")[:2].double()[:, None].expand(-1, count, -1) / count
        _, vectors = stream.stacked(trace, at)
        parts = torch.einsum("npd,cpd->nc", vectors, directions)
        return stream.by_token(trace, at, directions).flatten(0, 1), parts.flatten()


@pytest.mark.parametrize("at", [slice(0, 7), slice(6, 7), slice(2, 5)])
def test_tokens_have_the_sum_of_the_parts(config: ModelConfig, make_model: MakeModel, text: str, at: slice) -> None:
    tokens, parts = by_token_and_part(make_model(config, torch.float64), text, at)
    assert tokens.sum(-1).tolist() == pytest.approx(parts.tolist(), rel=1e-9, abs=1e-12)
    assert not tokens[:, at.stop :].any()  # what comes later is not read


@pytest.mark.parametrize("changes", MORE.values(), ids=MORE)
def test_tokens_have_the_sum_of_the_parts_in_further_combinations(
    changes: dict[str, Any], make_model: MakeModel, text: str
) -> None:
    tokens, parts = by_token_and_part(make_model("gpt2", torch.float64, **changes), text, slice(0, 7))
    assert tokens.sum(-1).tolist() == pytest.approx(parts.tolist(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("changes", MORE.values(), ids=MORE)
def test_contributions_add_up_for_further_combinations(
    changes: dict[str, Any], make_model: MakeModel, text: str
) -> None:
    model = make_model("gpt2", torch.float64, **changes)
    for token in range(11):
        attribution = direct_logit_attribution(model, text, token)
        assert attribution.total == pytest.approx(attribution.logit, abs=1e-10)


def test_in_float64_the_sum_is_the_logit_to_ten_digits(config: ModelConfig, make_model: MakeModel, text: str) -> None:
    model = make_model(config, torch.float64)
    with torch.no_grad():
        logits = model.decoder(torch.tensor([model.tokenizer.encode(text)]))[0, -1]
    attribution = direct_logit_attribution(model, text, 5)
    assert attribution.logit == pytest.approx(float(logits[5]), abs=1e-12)
    assert attribution.total == pytest.approx(float(logits[5]), abs=1e-10)
    assert sum(part.value for part in attribution.parts) == pytest.approx(attribution.total, abs=1e-12)


def test_a_missing_part_would_be_detected(make_model: MakeModel, text: str) -> None:
    model = make_model("gpt2", bias={"head": True}, tie_embeddings=False)
    attribution = direct_logit_attribution(model, text, 5)
    for part in attribution.parts:
        without = replace(attribution, total=attribution.total - part.value)
        assert excess(model, without, -1) > 1, part.name


def test_a_norm_that_does_not_center_would_be_detected(make_model: MakeModel, text: str, monkeypatch) -> None:
    freeze = LayerNorm.frozen

    def without_centering(*arguments: Any) -> FrozenNorm:
        norm = freeze(*arguments)
        return FrozenNorm(norm.scale, centers=False, shift=norm.shift)

    monkeypatch.setattr(LayerNorm, "frozen", without_centering)
    model = make_model("gpt2")
    assert excess(model, direct_logit_attribution(model, text, 5), -1) > 1


def test_parts_are_named_by_their_addresses(make_model: MakeModel, text: str) -> None:
    names = [part.name for part in direct_logit_attribution(make_model("gpt2", bias={"head": True}), text).parts]
    block = [f"attention.core[{head}]" for head in (0, 1)] + ["attention.output.bias", "feedforward"]
    blocks = [f"trunk.blocks.{layer}.{name}" for layer in (0, 1) for name in block]
    assert names == ["embed.token", "embed.position", *blocks, "trunk.norm.bias", "head.bias"]


def test_a_block_without_a_residual_removes_all_earlier_parts(make_model: MakeModel, text: str) -> None:
    names = [part.name for part in direct_logit_attribution(make_model("smallest"), text).parts]
    assert names == ["trunk.blocks.1.attention.core[0]"]


@pytest.mark.parametrize("head", [None, *range(4)])
def test_the_last_sublayer_and_its_heads_contribute_what_their_ablation_removes(make_model: MakeModel, text, head):
    """Without norms, nothing comes between the last sublayer and the logit."""
    if head is None:
        model, part = make_model("gpt2", torch.float64, norm="none"), "trunk.blocks.1.feedforward"
    else:
        model = make_model("llama", torch.float64, norm="none", feedforward="none")
        part = f"trunk.blocks.1.attention.core[{head}]"
    attribution = direct_logit_attribution(model, text, 3)
    change = torch.zeros(8) if head is None else without_heads(head)
    with torch.no_grad(), Trace(model, replace={part.partition("[")[0]: change}):
        without = float(record(model, text, []).next_logits(-1)[3])
    value = next(each.value for each in attribution.parts if each.name == part)
    assert attribution.logit - without == pytest.approx(value, abs=1e-12)


REPLACED = ["embed", "embed.token", "trunk", "trunk.norm", "trunk.blocks.0", "trunk.blocks.1.attention.core.value"]
REPLACED += [
    f"trunk.blocks.{name}" for name in ("0.attention", "1.attention.output", "1.feedforward", "1.attention.core")
]


@pytest.mark.parametrize("name", [*REPLACED, "trunk.blocks.1.attention_residual"])
def test_contributions_to_a_pass_with_a_replaced_value_add_up(config: ModelConfig, make_model: MakeModel, text, name):
    model = make_model(config, torch.float64)
    if name not in trace_names(model):
        pytest.skip("this model has no such value")
    unchanged = direct_logit_attribution(model, text, 3)
    with torch.no_grad(), Trace(model, replace={name: lambda old: old.flip(-1) + 0.25}):
        attribution = direct_logit_attribution(model, text, 3)
        logit = float(record(model, text, []).next_logits(-1)[3])
    assert attribution.logit == pytest.approx(logit, abs=1e-12)
    assert attribution.total == pytest.approx(logit, abs=1e-10)
    assert logit != pytest.approx(unchanged.logit, abs=1e-3)


def test_a_replaced_stream_is_one_part(make_model: MakeModel, text: str) -> None:
    with Trace(model := make_model("gpt2"), replace={"trunk.blocks.0": lambda old: 2 * old}):
        names = [part.name for part in direct_logit_attribution(model, text).parts]
    block = ("attention.core[0]", "attention.core[1]", "attention.output.bias", "feedforward")
    assert names == ["trunk.blocks.0", *(f"trunk.blocks.1.{name}" for name in block), "trunk.norm.bias"]


@pytest.mark.parametrize("name", ["head", "trunk.blocks.1.attention_residual.dropout"])
def test_contributions_that_cannot_add_up_are_refused(make_model: MakeModel, text: str, name: str) -> None:
    model = make_model("gpt2")
    with Trace(model, replace={name: lambda old: 2 * old}), pytest.raises(UsageError, match=f"do not add up.*{name}"):
        direct_logit_attribution(model, text, 3)


def test_with_another_token_every_number_is_a_difference(make_model: MakeModel, text: str) -> None:
    model = make_model("gpt2", torch.float64, bias={"head": True})
    first, second = direct_logit_attribution(model, text, "b"), direct_logit_attribution(model, text, "e")
    both = direct_logit_attribution(model, text, "b", against="e")
    assert both.logit == pytest.approx(first.logit - second.logit)
    for part, ours, theirs in zip(both.parts, first.parts, second.parts, strict=True):
        assert part.value == pytest.approx(ours.value - theirs.value, abs=1e-12)


def test_the_default_token_is_the_most_probable(model: LanguageModel, text: str) -> None:
    with torch.no_grad():
        best = int(record(model, text, []).next_logits(2).argmax())
    attribution = direct_logit_attribution(model, text, at=2)
    assert (attribution.token, attribution.text) == (best, model.tokenizer.text_of(best))


# --- printed output ---


def test_printed_parts_are_sorted_and_the_rest_is_one_line(make_model: MakeModel, text: str) -> None:
    attribution = direct_logit_attribution(make_model("llama", num_layers=6), text, "c")
    lines = str(attribution).splitlines()
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
        ({"token": "ab"}, UsageError, "'ab' is 2 tokens of this model: 'a', 'b'; give one token"),
        ({"token": ""}, UsageError, "'' is 0 tokens of this model; give one token"),
        ({"token": 99}, TokenizerError, "99 is not a token id"),
        ({"against": "zz"}, TokenizerError, "z"),
        ({"token": "a", "against": "a"}, UsageError, "against is the token itself, 'a'; give another one"),
        ({"at": 7}, UsageError, r"position 7 is outside the text, which has 7 tokens \(0 to 6\)"),
    ],
)
def test_invalid_questions_are_one_line_errors(make_model: MakeModel, text: str, ask, error, words) -> None:
    with pytest.raises(error, match=words):
        direct_logit_attribution(make_model("gpt2"), text, **ask)


def test_a_model_in_training_mode_is_refused(make_model: MakeModel, text: str) -> None:
    model = make_model("explicit core")
    model.decoder.train()
    with pytest.raises(UsageError, match="dropout"):
        direct_logit_attribution(model, text)

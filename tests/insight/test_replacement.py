"""Any named value can be replaced while the model runs, and the rest of the pass uses the replacement."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.errors import UsageError
from foretell.insight.replacement import Replacement, without_heads
from foretell.insight.trace import Trace, trace_names
from foretell.model.decoder import Decoder
from tests.insight.conftest import MakeDecoder

CORE = "trunk.blocks.0.attention.core"
STAGES = ("scores", "scaled", "masked", "weights")
REPLACEABLE = [
    "trunk.rotation.sine",
    "trunk.blocks.0.attention",
    "trunk.blocks.0.attention.query",
    *(CORE, f"{CORE}.query", f"{CORE}.key", f"{CORE}.value", f"{CORE}.scores", f"{CORE}.weights"),
]


def replaced(decoder: Decoder, ids: Tensor, replace: dict[str, Replacement]) -> Tensor:
    with Trace(decoder, replace=replace):
        return decoder(ids)


def test_a_replaced_stream_determines_the_rest_of_the_pass(gpt2: Decoder, ids: Tensor) -> None:
    other = ids.flip(1)
    with Trace(gpt2, "trunk.blocks.0") as trace:
        expected = gpt2(other)
    assert torch.equal(replaced(gpt2, ids, {"trunk.blocks.0": trace["trunk.blocks.0"]}), expected)


def test_a_value_replaced_by_itself_changes_nothing(gpt2: Decoder, ids: Tensor) -> None:
    names = [name for name in trace_names(gpt2) if name.rpartition(".")[2] not in ("mean", "variance", *STAGES)]
    same: dict[str, Replacement] = dict.fromkeys(names, lambda value: value)
    assert torch.equal(replaced(gpt2, ids, same), gpt2(ids))


@pytest.mark.parametrize("name", REPLACEABLE)
def test_every_kind_of_value_can_be_replaced(make_decoder: MakeDecoder, ids: Tensor, name: str) -> None:
    decoder = make_decoder("llama")
    with Trace(decoder, name) as before:
        plain = decoder(ids)
    with Trace(decoder, name, replace={name: lambda value: value * 0.5}) as trace:
        assert not torch.allclose(decoder(ids), plain)
    torch.testing.assert_close(trace[name], before[name] * 0.5)


def test_a_vector_replaces_every_position(gpt2: Decoder, ids: Tensor) -> None:
    with Trace(gpt2, "embed", replace={"embed": torch.arange(8)}) as trace:
        gpt2(ids)
    assert torch.equal(trace["embed"], torch.arange(8.0).expand(3, 12, 8))


def test_globs_replace_in_every_layer(gpt2: Decoder, ids: Tensor) -> None:
    with Trace(gpt2, "**.feedforward", replace={"trunk.blocks.*.feedforward": torch.zeros(())}) as trace:
        gpt2(ids)
    assert len(trace.names()) == 2
    assert not any(trace[name].any() for name in trace.names())


def test_without_heads_equals_zero_columns_of_the_output_weight(gpt2: Decoder, ids: Tensor) -> None:
    ablated = replaced(gpt2, ids, {CORE: without_heads(1)})
    with torch.no_grad():
        gpt2.get_submodule("trunk.blocks.0.attention.output").get_parameter("weight")[:, 4:] = 0
    torch.testing.assert_close(ablated, gpt2(ids))


# --- derived values ---


@pytest.mark.parametrize("stage", STAGES)
def test_an_explicit_core_equals_the_models_own_core(
    config: ModelConfig, stage: str, make_decoder: MakeDecoder, ids: Tensor
) -> None:
    decoder = make_decoder(config, torch.float64)
    explicit = replaced(decoder, ids, {f"**.core.{stage}": lambda value: value})
    torch.testing.assert_close(explicit, decoder(ids), rtol=0, atol=1e-12 * float(explicit.abs().max().detach()))


def test_replaced_weights_are_used_and_noted(gpt2: Decoder, ids: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "foretell")
    uniform = torch.full((12, 12), 1 / 12)
    with Trace(gpt2, f"{CORE}.**", replace={f"{CORE}.weights": uniform}) as trace:
        gpt2(ids)
    means = trace[f"{CORE}.value"].mean(2, keepdim=True).expand(3, 2, 12, 4)
    torch.testing.assert_close(trace[CORE], means)
    assert torch.equal(trace[f"{CORE}.weights"], uniform.expand(3, 2, 12, 12))
    assert not trace.is_derived(f"{CORE}.weights")
    assert (
        caplog.messages
        == trace.notes
        == [
            "trunk.blocks.0.attention.core is replaced by an explicit core in this trace, "
            "since its weights are replaced"
        ]
    )


def test_a_trace_with_replacements_can_be_entered_again(gpt2: Decoder, ids: Tensor) -> None:
    trace = Trace(gpt2, f"{CORE}.weights", replace={f"{CORE}.weights": torch.zeros(12, 12)})
    for _ in range(2):
        with trace:
            gpt2(ids)
        assert not trace[f"{CORE}.weights"].any()
        assert len(trace.notes) == 1


def test_a_replaced_mask_is_used(gpt2: Decoder, ids: Tensor) -> None:
    def only_itself(masked: Tensor) -> Tensor:
        return masked.masked_fill(~torch.eye(12, dtype=torch.bool), -torch.inf)

    with Trace(gpt2, f"{CORE}.**", replace={f"{CORE}.masked": only_itself}) as trace:
        gpt2(ids)
    assert torch.equal(trace[f"{CORE}.weights"], torch.eye(12).expand(3, 2, 12, 12))
    torch.testing.assert_close(trace[CORE], trace[f"{CORE}.value"])


def test_an_explicit_core_keeps_the_dropout_of_the_core_it_replaces(make_decoder: MakeDecoder, ids: Tensor) -> None:
    decoder = make_decoder("explicit core", torch.float64).train()
    explicit = replaced(decoder, ids, {"**.weights": lambda weights: weights})
    torch.testing.assert_close(explicit, decoder(ids))
    assert not torch.allclose(explicit, decoder.eval()(ids))


# --- errors ---


@pytest.mark.parametrize(
    ("replace", "words"),
    [
        ({"embed": torch.zeros(7)}, r"the replacement of embed has shape \(7,\), .* \(3, 12, 8\)"),
        ({"embed": lambda value: value[:, 1:]}, r"shape \(3, 11, 8\), which does not fit its shape \(3, 12, 8\)"),
        ({"embed": lambda value: None}, "the replacement of embed is a NoneType; give a tensor"),
        ({CORE: without_heads(0, 2)}, "there is no head 2 to leave out; the heads are 0 to 1"),
        ({"embde": torch.zeros(8)}, "nothing here is named 'embde'; near it: embed"),
        ({"trunk.norm.variance": torch.ones(1)}, "replace the output of trunk.norm instead"),
    ],
)
def test_an_invalid_replacement_is_refused(
    gpt2: Decoder, ids: Tensor, replace: dict[str, Replacement], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        replaced(gpt2, ids, replace)

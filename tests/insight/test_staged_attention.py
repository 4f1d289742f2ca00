"""Derived values reproduce the output of the pass."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.insight.replacement import ATTENTION_BOUND, mix
from foretell.insight.trace import Trace, trace_names
from foretell.model.decoder import Decoder
from tests.insight.conftest import MakeDecoder

EPSILON = 1e-5
CORE = "trunk.blocks.1.attention.core"
PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@torch.no_grad()
def traced(decoder: Decoder, ids: Tensor, autocast: bool = False) -> Trace:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), Trace(decoder, "**") as trace:
        decoder(ids)
    return trace


def excess(trace: Trace, core: str, stage: str = "weights") -> float:
    """The difference of the values weighted so and the core's output, as a share of the stated bound."""
    value, output = trace[f"{core}.value"].double(), trace[core]
    mixed = mix(trace[f"{core}.{stage}"].double(), value)
    largest_score = max(1.0, float(trace[f"{core}.scaled"].abs().max()))
    bound = ATTENTION_BOUND * torch.finfo(output.dtype).eps * float(value.abs().max()) * largest_score
    return float((mixed - output).abs().max()) / bound


@pytest.mark.parametrize("precision", PRECISIONS)
def test_derived_weights_reproduce_the_kernels_output(
    config: ModelConfig, precision: str, make_decoder: MakeDecoder, ids: Tensor
) -> None:
    trace = traced(make_decoder(config, PRECISIONS[precision]), ids)
    assert trace[CORE].dtype == PRECISIONS[precision]
    assert max(excess(trace, f"trunk.blocks.{layer}.attention.core") for layer in (0, 1)) <= 1


def test_derived_weights_reproduce_the_kernels_output_under_autocast(decoder: Decoder, ids: Tensor) -> None:
    trace = traced(decoder, ids, autocast=True)
    assert trace[CORE].dtype == torch.bfloat16
    assert excess(trace, CORE) <= 1


def test_slightly_wrong_weights_would_be_detected(gpt2: Decoder, ids: Tensor) -> None:
    gpt2.get_submodule(CORE).register_forward_hook(lambda _, __, output: output * (1 + 1e-5))
    assert excess(traced(gpt2, ids), CORE) > 1


def test_each_stage_follows_from_the_one_before(decoder: Decoder, ids: Tensor) -> None:
    trace = traced(decoder, ids)
    query, key = trace[f"{CORE}.query"], trace[f"{CORE}.key"]
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = torch.einsum("bhte,bhse->bhts", query, key)
    torch.testing.assert_close(trace[f"{CORE}.scores"], scores)
    torch.testing.assert_close(trace[f"{CORE}.scaled"], scores / math.sqrt(query.shape[-1]))
    masked, weights = trace[f"{CORE}.masked"], trace[f"{CORE}.weights"]
    visible = masked > -torch.inf
    window = decoder.config.windows[1] or 12
    assert torch.equal(visible[0, 0], torch.ones(12, 12).tril().triu(1 - window).bool())
    assert torch.equal(masked[visible], trace[f"{CORE}.scaled"][visible])
    assert torch.equal(weights > 0, visible)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_mean_and_variance_reproduce_a_layer_norm(gpt2: Decoder, ids: Tensor) -> None:
    trace, norm = traced(gpt2, ids), gpt2.trunk.norm
    assert isinstance(norm, nn.LayerNorm)
    stream = trace["trunk.blocks.1"]
    normal = (stream - trace["trunk.norm.mean"]) / (trace["trunk.norm.variance"] + EPSILON).sqrt()
    torch.testing.assert_close(normal * norm.weight + norm.bias, trace["trunk.norm"])


def test_the_mean_square_reproduces_an_rms_norm_which_has_no_mean(make_decoder: MakeDecoder, ids: Tensor) -> None:
    qwen = make_decoder("qwen3")
    trace, norm = traced(qwen, ids), qwen.trunk.norm
    assert isinstance(norm, nn.RMSNorm)
    normal = trace["trunk.blocks.1"] / (trace["trunk.norm.mean_square"] + EPSILON).sqrt()
    torch.testing.assert_close(normal * norm.weight, trace["trunk.norm"])
    assert "trunk.norm.mean" not in trace_names(qwen)
    assert "trunk.blocks.0.attention.query_norm.mean_square" in trace_names(qwen)


def test_derived_values_are_marked_and_recorded_ones_are_not(gpt2: Decoder, ids: Tensor) -> None:
    trace = traced(gpt2, ids)
    derived = [name.removeprefix(f"{CORE}.") for name in trace.names() if trace.is_derived(name) and CORE in name]
    assert derived == ["scores", "scaled", "masked", "weights"]
    assert trace.is_derived("trunk.norm.variance")
    assert not trace.is_derived("trunk.norm")


def test_half_precision_is_derived_in_float32_even_under_autocast(gpt2: Decoder, ids: Tensor) -> None:
    trace = traced(gpt2.bfloat16(), ids)
    alone = trace[f"{CORE}.weights"]
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = trace[f"{CORE}.weights"]
    assert alone.dtype == torch.float32
    assert torch.equal(alone, under_autocast)

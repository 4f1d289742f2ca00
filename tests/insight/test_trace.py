"""A trace records every value of a pass, leaves its results bit-identical, and leaves the model unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretell.config.sampling import SamplingConfig
from foretell.data.batch import Batch
from foretell.errors import UsageError
from foretell.generation.batch_generation import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.insight.trace import Trace, trace_names
from foretell.model.cache import FreshKVView
from foretell.model.decoder import Decoder
from foretell.training.objective import Objective
from tests.insight.conftest import MakeDecoder

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]


def continued(decoder: Decoder, prompts: list[list[int]] = PROMPTS, new: int = 4) -> list[list[int]]:
    sequences = [Sequence(prompt, sample) for sample, prompt in enumerate(prompts)]
    list(generate(decoder, sequences, Sampler(SamplingConfig(temperature=0.7)), new))
    return [sequence.generated for sequence in sequences]


def logits_of_generation(decoder: Decoder) -> list[Tensor]:
    logits: list[Tensor] = []
    with decoder.head.register_forward_hook(lambda module, inputs, output: logits.append(output)):
        continued(decoder)
    return logits


def make_batch(ids: Tensor) -> Batch:
    return Batch(ids[:, :-1], ids[:, 1:], torch.ones(ids[:, 1:].shape))


def hooks(decoder: Decoder) -> list[Any]:
    """All hooks on all modules, and the modules themselves."""
    modules = [module for _, module in decoder.named_modules()]
    return [[*map(id, modules)], *[[*module._forward_hooks, *module._forward_pre_hooks] for module in modules]]


# --- recorded values ---


def test_recorded_logits_are_bit_identical(decoder: Decoder, ids: Tensor) -> None:
    plain = decoder(ids)
    with Trace(decoder, "**") as trace:
        recorded = decoder(ids)
    assert torch.equal(recorded, plain)
    assert torch.equal(trace["head"], plain)


def test_recorded_generation_is_bit_identical(decoder: Decoder) -> None:
    plain = logits_of_generation(decoder)
    with Trace(decoder, "**") as trace:
        logits_of_generation(decoder)
    assert len(plain) == 4
    assert all(map(torch.equal, trace.calls("head"), plain))


def test_a_trace_that_changed_a_value_would_be_detected(gpt2: Decoder, ids: Tensor) -> None:
    plain = gpt2(ids)
    with Trace(gpt2, "**", replace={"trunk.blocks.0": lambda stream: stream * (1 + 1e-6)}):
        assert not torch.equal(gpt2(ids), plain)


def test_every_name_of_a_model_has_a_value_after_one_pass(decoder: Decoder, ids: Tensor) -> None:
    with Trace(decoder, "**") as trace:
        decoder(ids)
    assert list(trace) == trace.names() == trace_names(decoder)
    assert all(isinstance(trace[name], Tensor) for name in trace.names())


def test_the_residual_stream_can_be_followed_from_block_to_block(gpt2: Decoder, ids: Tensor) -> None:
    with Trace(gpt2, ["embed", "trunk.blocks.*", "**.attention", "**.attention_residual", "**.feedforward"]) as trace:
        gpt2(ids)
    stream = trace["embed"]
    for block in ("trunk.blocks.0", "trunk.blocks.1"):
        stream = stream + trace[f"{block}.attention"]
        assert torch.equal(trace[f"{block}.attention_residual"], stream)
        stream = stream + trace[f"{block}.feedforward"]
        assert torch.equal(trace[block], stream)


def test_the_inputs_of_a_core_are_those_after_norm_and_rotation(make_decoder: MakeDecoder, ids: Tensor) -> None:
    qwen = make_decoder("qwen3")
    with Trace(qwen, ["trunk.rotation.*", "trunk.blocks.0.attention.**"]) as trace:
        qwen(ids)
    normed = trace["trunk.blocks.0.attention.query_norm"]
    first, second = normed.chunk(2, -1)
    rotated = normed * trace["trunk.rotation.cosine"] + torch.cat((-second, first), -1) * trace["trunk.rotation.sine"]
    assert torch.equal(trace["trunk.blocks.0.attention.core.query"], rotated)
    assert trace["trunk.blocks.0.attention.core"].shape == (3, 2, 12, 6)


def test_only_selected_values_are_kept(gpt2: Decoder, ids: Tensor) -> None:
    with Trace(gpt2, "trunk.blocks.1.attention.core.weights") as trace:
        gpt2(ids)
    assert trace.names() == ["trunk.blocks.1.attention.core.weights"]
    assert trace.held_bytes == 2 * 3 * 12 * 8 * 4  # the queries and keys of one layer


def test_values_are_detached(gpt2: Decoder, ids: Tensor) -> None:
    with Trace(gpt2, "**") as trace:
        gpt2(ids)
    assert not any(trace[name].requires_grad for name in trace.names())


def test_entering_a_trace_again_clears_its_values(gpt2: Decoder, ids: Tensor) -> None:
    trace = Trace(gpt2, "head")
    for rows in (3, 1):
        with trace:
            gpt2(ids[:rows])
        assert trace["head"].shape[0] == rows


# --- several calls ---


def test_a_generation_records_the_values_of_every_token(decoder: Decoder) -> None:
    prompt = [[1, 2, 3]]
    with Trace(decoder, "**") as trace:
        new = continued(decoder, prompt)[0]
    with Trace(decoder, "**") as whole:
        decoder(torch.tensor([prompt[0] + new[:-1]]))
    for name in ("trunk.blocks.1", "trunk.blocks.0.attention.core.query"):
        assert [value.shape[-2] for value in trace.calls(name)] == [3, 1, 1, 1]
        torch.testing.assert_close(torch.cat(trace.calls(name), -2), whole[name], rtol=1e-4, atol=1e-5)
    weights = whole["trunk.blocks.1.attention.core.weights"]
    for row, step in enumerate(trace.calls("trunk.blocks.1.attention.core.weights")[1:], start=3):
        torch.testing.assert_close(step[0, :, 0], weights[0, :, row, : row + 1], rtol=1e-4, atol=1e-5)


def test_recorded_keys_do_not_change_with_the_cache(gpt2: Decoder) -> None:
    name = "trunk.blocks.1.attention.core.key"
    at_once: list[Tensor] = []
    core = gpt2.get_submodule("trunk.blocks.1.attention.core")
    with (
        core.register_forward_pre_hook(lambda _, inputs: at_once.append(inputs[1].clone())),
        Trace(gpt2, name) as trace,
    ):
        continued(gpt2)
    assert all(map(torch.equal, trace.calls(name), at_once))


def test_reading_a_value_of_several_calls_names_their_number(gpt2: Decoder, ids: Tensor) -> None:
    with Trace(gpt2, "embed") as trace:
        with pytest.raises(UsageError, match="0 times"):
            _ = trace["embed"]
        gpt2(ids)
        gpt2(ids)
    with pytest.raises(UsageError, match=r"embed was computed 2 times; trace.calls\('embed'\)"):
        _ = trace["embed"]
    assert len(trace.calls("embed")) == 2


# --- training ---


def test_gradients_of_values_equal_those_of_autograd(gpt2: Decoder, ids: Tensor) -> None:
    objective, batch = Objective(gpt2), make_batch(ids)
    with Trace(gpt2, ["trunk.blocks.0", "head"], gradients=True) as trace:
        objective(batch).sum.backward()
    gpt2.zero_grad()
    stream = trace["trunk.blocks.0"].clone().requires_grad_()
    with Trace(gpt2, replace={"trunk.blocks.0": lambda _: stream}):
        objective(batch).sum.backward()
    torch.testing.assert_close(trace["grad:trunk.blocks.0"], stream.grad)
    probabilities = trace["head"].softmax(-1)
    one_hot = nn.functional.one_hot(batch.targets.flatten(), 11)
    torch.testing.assert_close(trace["grad:head"], probabilities - one_hot)


def test_recording_gradients_does_not_change_those_of_the_weights(decoder: Decoder, ids: Tensor) -> None:
    names = [name for name in trace_names(decoder) if ".core." not in name]
    objective, batch = Objective(decoder.train()), make_batch(ids)
    objective(batch).sum.backward()
    plain = {path: weight.grad for path, weight in decoder.named_parameters()}
    decoder.zero_grad(set_to_none=True)
    with Trace(decoder, names, gradients=True):
        objective(batch).sum.backward()
    for path, weight in decoder.named_parameters():
        torch.testing.assert_close(weight.grad, plain[path], rtol=0, atol=0)


def test_attention_weights_have_gradients(gpt2: Decoder, ids: Tensor) -> None:
    name = "trunk.blocks.0.attention.core.weights"
    with Trace(gpt2, [name, "**.core", "**.value"], gradients=True) as trace:
        Objective(gpt2)(make_batch(ids)).sum.backward()
    core, value = trace["grad:trunk.blocks.0.attention.core"], trace["trunk.blocks.0.attention.core.value"]
    torch.testing.assert_close(trace[f"grad:{name}"], core @ value.mT)
    assert trace.notes == [
        f"{name.removesuffix('.weights')} is replaced by an explicit core in this trace, "
        "since its weights are to have gradients"
    ]


def test_each_chunk_of_logits_is_recorded_once_with_its_gradient(gpt2: Decoder, ids: Tensor) -> None:
    objective, batch = Objective(gpt2, logits_at_once=11 * 11), make_batch(ids)
    with Trace(gpt2, "head", gradients=True) as trace:
        objective(batch).sum.backward()
    assert len(trace.calls("head")) == len(trace.calls("grad:head")) == 3
    expected = torch.cat(trace.calls("head")).softmax(-1) - nn.functional.one_hot(batch.targets.flatten(), 11)
    torch.testing.assert_close(torch.cat(trace.calls("grad:head")), expected)


# --- leaving the block ---


def test_the_model_is_restored_even_after_an_error(decoder: Decoder, ids: Tensor) -> None:
    before, plain = hooks(decoder), decoder(ids)
    weights = "trunk.blocks.0.attention.core.weights"
    with pytest.raises(ZeroDivisionError), Trace(decoder, "**", replace={weights: lambda value: value}, gradients=True):
        decoder(ids)
        assert hooks(decoder) != before
        raise ZeroDivisionError
    assert hooks(decoder) == before
    assert torch.equal(decoder(ids), plain)


def test_a_trace_that_cannot_start_leaves_the_model_unchanged(gpt2: Decoder, ids: Tensor) -> None:
    before = hooks(gpt2)
    replace = {"**.weights": lambda value: value, "trunk.norm.mean": lambda value: value}
    with pytest.raises(UsageError, match="trunk.norm.mean cannot be replaced"), Trace(gpt2, "**", replace=replace):
        pass
    assert hooks(gpt2) == before


# --- errors ---


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("trunk.blocks.*.atention.core.weights", "trunk.blocks.*.attention.core.weights"),
        ("**.wieghts", "**.weights"),
        ("trunk.blocks.2.attention", "trunk.blocks.1.attention"),
        ("", "nothing here is named ''"),
    ],
)
def test_a_glob_that_matches_nothing_is_refused_with_the_nearest_names(gpt2: Decoder, select: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        Trace(gpt2, ["embed", select])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_unselected_and_unknown_names_have_different_errors(gpt2: Decoder, ids: Tensor) -> None:
    with Trace(gpt2, "embed") as trace:
        gpt2(ids)
    with pytest.raises(UsageError, match="head was not recorded"):
        _ = trace["head"]
    with pytest.raises(UsageError, match="'haed'; near it: head"):
        trace.calls("haed")


def test_padded_rows_of_documents_are_recorded_with_their_mask(gpt2: Decoder, ids: Tensor) -> None:
    document_ids = torch.tensor([[0] * 5 + [1] * 7, [0] * 12, [0] * 3 + [1] * 6 + [-1] * 3])
    with Trace(gpt2, "**.weights") as trace:
        gpt2(ids, FreshKVView(ids, document_ids=document_ids))
    hidden = document_ids[:, None, :, None] != document_ids[:, None, None, :]
    for name in trace.names():
        assert float(trace[name].masked_select(hidden).abs().max()) == 0

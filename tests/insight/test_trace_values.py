"""The memory budget of a trace: estimated before a pass and counted during it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from foretell.config.sampling import SamplingConfig
from foretell.data.batch import Batch
from foretell.errors import UsageError
from foretell.generation.batch_generation import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.insight.recorded_values import Budget, element_bytes, least_elements
from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.model.structure import model_structure
from foretell.training.objective import Objective


def refuse(*_: object) -> None:
    raise AssertionError("the model ran")


def test_the_estimate_of_every_name_equals_what_a_pass_records(decoder: Decoder, ids: Tensor) -> None:
    structure = model_structure(decoder)
    with Trace(decoder, "**") as trace:
        decoder(ids)
    for name, value in structure.values.items():
        if not value.is_derived and name != "head":  # logits may be asked for of a few positions only
            assert least_elements(value, structure, ids) == trace[name].numel(), name
    assert least_elements(structure["head"], structure, ids) == 0


def test_a_pass_that_would_exceed_the_budget_does_not_start(gpt2: Decoder, ids: Tensor) -> None:
    gpt2.embed.register_forward_hook(refuse)
    with pytest.raises(UsageError) as error, Trace(gpt2, "**.up", budget_bytes=9000):
        gpt2(ids)
    assert str(error.value) == (
        "the trace needs 9.2 kB or more and may hold 9.0 kB; largest: trunk.blocks.*.feedforward.up 9.2 kB. "
        "Select fewer names, give a shorter text, or (in Python) raise budget_bytes"
    )


def test_a_pass_that_exactly_fits_is_recorded(gpt2: Decoder, ids: Tensor) -> None:
    with Trace(gpt2, "**.up", budget_bytes=2 * 36 * 32 * 4) as trace:
        gpt2(ids)
    assert trace.held_bytes == trace.budget_bytes


def test_derived_values_need_their_inputs_only(gpt2: Decoder, ids: Tensor) -> None:
    with Trace(gpt2, "**.core.*") as trace:
        gpt2(ids)
    assert trace.held_bytes == 2 * 3 * 36 * 8 * 4  # queries, keys and values, each once


def test_a_generation_stops_when_its_budget_is_exceeded(gpt2: Decoder) -> None:
    sequence = Sequence([1, 2, 3])
    with pytest.raises(UsageError, match="the trace needs"), Trace(gpt2, "trunk", budget_bytes=5 * 8 * 4) as trace:
        list(generate(gpt2, [sequence], Sampler(SamplingConfig()), 8))
    assert len(sequence.generated) == 3
    assert trace.held_bytes <= 6 * 8 * 4


def test_gradients_are_part_of_the_estimate(gpt2: Decoder, ids: Tensor) -> None:
    values = 36 * 8 * 4
    objective = Objective(gpt2)
    batch = Batch(ids, ids, torch.ones(ids.shape))
    with Trace(gpt2, "trunk", gradients=True, budget_bytes=2 * values) as trace:
        objective(batch).sum.backward()
    assert trace.held_bytes == 2 * values
    gpt2.embed.register_forward_hook(refuse)
    with pytest.raises(UsageError), Trace(gpt2, "trunk", gradients=True, budget_bytes=2 * values - 1):
        objective(batch)


def test_logits_are_counted_when_recorded(gpt2: Decoder, ids: Tensor) -> None:
    with pytest.raises(UsageError, match="largest: head"), Trace(gpt2, "head", budget_bytes=100):
        gpt2(ids)


def test_element_bytes_consider_autocast(gpt2: Decoder) -> None:
    assert element_bytes(gpt2.dtype, gpt2.device) == 4
    with torch.autocast("cpu", torch.bfloat16):
        assert element_bytes(torch.float32, gpt2.device) == 2
        assert element_bytes(torch.bfloat16, gpt2.device) == 2
    assert element_bytes(torch.float64, gpt2.device) == 8


def test_saving_counts_derived_values(gpt2: Decoder, ids: Tensor, tmp_path) -> None:
    with Trace(gpt2, "**.weights", budget_bytes=5000) as trace:
        gpt2(ids)
    with pytest.raises(UsageError, match="largest: trunk.blocks.\\*.attention.core.weights"):
        trace.save(tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_the_error_names_the_largest_values_with_layers_summed() -> None:
    budget = Budget(100)
    for name, size in {"a.0.b": 20, "a.1.b": 20, "c": 5, "d": 1, "e": 2}.items():
        budget.add(name, torch.zeros(size, dtype=torch.uint8))
    with pytest.raises(UsageError, match=r"largest: f 60 bytes, a.\*.b 40 bytes, c 5 bytes\. "):
        budget.add("f", torch.zeros(60, dtype=torch.uint8))


def test_an_unknown_module_is_not_estimated_but_counted(gpt2: Decoder, ids: Tensor) -> None:
    gpt2.trunk.blocks[0].add_module("probe", nn.Identity())
    gpt2.trunk.blocks[0].register_forward_hook(lambda block, _, output: block.get_submodule("probe")(output))
    with Trace(gpt2, "**.probe") as trace:
        gpt2(ids)
    assert trace.held_bytes == 36 * 8 * 4

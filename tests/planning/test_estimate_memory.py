"""Memory of a training by part, counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import weight_shapes
from foretell.errors import ConfigError
from foretell.model.cost import saved_bytes_per_token
from foretell.planning import estimate
from foretell.planning.estimate import (
    PROGRAM,
    DeviceMemory,
    Range,
    accumulations,
    check_training_fits,
    rows_at_once,
    total,
    training_memory,
    with_program,
)
from foretell.training.execution import COMPILED_STEPS

MODEL = make_section(
    ModelConfig, {"num_layers": 3, "num_heads": 2, "width": 8, "context_length": 16, "vocab_size": 50, "bias": False}
)
SHAPES = weight_shapes(MODEL)
TRUNK = 3 * (4 * 8 * 8 + 2 * 8 * 32)  # the matrices of three blocks
N = 50 * 8 + 16 * 8 + TRUNK + 7 * 8  # embeddings, trunk, norms


def parts(processes: int = 1, dtype: torch.dtype | None = torch.bfloat16, **training: Any) -> dict[str, Range]:
    config = make_section(TrainingConfig, {"steps": COMPILED_STEPS, "batch_size": 4, **training})
    return training_memory(MODEL, SHAPES, config, DeviceMemory("h100", 10**10, processes, dtype))


@pytest.mark.parametrize(("optimizer", "moments"), [("adamw", 2 * N), ("muon", 2 * N - TRUNK), ("sgd", N)])
def test_each_part_is_as_counted_by_hand(optimizer: str, moments: int) -> None:
    assert sum(map(math.prod, SHAPES.values())) == N
    found = parts(optimizer=optimizer, compile=False)
    assert found["weights"] == found["gradients"] == Range.exact(4 * N)
    assert found["optimizer"] == Range.exact(4 * moments)
    assert found["bfloat16 copies"] == Range.exact(2 * (N - 7 * 8))
    assert found["activations"].low == 4 * 16 * saved_bytes_per_token(MODEL)
    assert found["logits"] == Range(6, 14) * (4 * 16 * 50)


def test_compiled_on_a_gpu_a_training_may_keep_less() -> None:
    may_be_compiled, is_not = parts(), parts(compile=False)
    assert parts(steps=COMPILED_STEPS - 1) == is_not  # as `Session.compile` decides
    assert may_be_compiled["activations"] == Range(is_not["activations"].low / 2, is_not["activations"].high)
    assert may_be_compiled["logits"] == Range(4, 14) * (4 * 16 * 50)


def test_shards_divide_the_state_and_copies_do_not() -> None:
    assert parts(4, parallel="fsdp")["optimizer"] == Range.exact(8 * N / 4)
    accumulated = parts(4, parallel="fsdp", gradient_accumulation_steps=2)
    assert (accumulated["weights"], accumulated["gradients"]) == (Range.exact(N), Range.exact(4 * N))
    assert parts(4, parallel="ddp")["optimizer"] == Range.exact(8 * N)
    assert parts(4)["activations"] == parts(1, batch_size=1)["activations"]


def test_rows_at_once_are_those_of_a_micro_batch_on_one_process() -> None:
    assert rows_at_once(TrainingConfig(steps=1, batch_size=24, gradient_accumulation_steps=3), 4) == 2


def test_checkpointing_keeps_the_inputs_of_blocks_and_the_values_of_one() -> None:
    one = saved_bytes_per_token(MODEL.replaced(num_layers=1))
    found = parts(checkpoint_activations=("**.blocks.*",), compile=False)["activations"]
    assert found.low == 64 * (one + 3 * 8 * 4) < found.high < parts()["activations"].high
    assert parts(checkpoint_activations=("**.feedforward",))["activations"].high == parts()["activations"].high


def test_float32_has_no_copies_and_an_unknown_precision_has_none_for_sure() -> None:
    assert parts(dtype=torch.float32)["bfloat16 copies"] == Range.exact(0)
    assert parts(dtype=None)["bfloat16 copies"].low == 0


def test_the_program_is_counted_where_it_shares_the_memory() -> None:
    found = parts()
    on_a_cpu = with_program(found, DeviceMemory("cpu", 10**10))
    assert total(on_a_cpu) == total(found) + PROGRAM
    assert with_program(found, DeviceMemory("h100", 10**10)) == found


# --- what would fit ---------------------------------------------------------------------------------------------------


def refusal(size: float, processes: int = 1, **training: Any) -> str:
    config = make_section(TrainingConfig, {"steps": 1, "batch_size": 64, **training})
    with pytest.raises(ConfigError) as caught:
        check_training_fits(MODEL, SHAPES, config, DeviceMemory("h100", int(size), processes, torch.bfloat16))
    return str(caught.value)


def test_too_many_rows_are_refused_with_a_smaller_number_that_fits() -> None:
    enough = total(parts(batch_size=2)).high
    message = refusal(enough)
    assert "64 x 16 tokens" in message
    assert "training.gradient_accumulation_steps 32" in message
    training = TrainingConfig(steps=1, batch_size=64, gradient_accumulation_steps=32)
    check_training_fits(MODEL, SHAPES, training, DeviceMemory("h100", int(enough), 1, torch.bfloat16))


def test_a_state_that_is_too_large_is_refused_with_shards_that_fit() -> None:
    model = MODEL.replaced(width=64, head_width=32, feedforward_width=256, context_length=4)
    shapes = weight_shapes(model)
    memory = DeviceMemory("h100", 8 * sum(map(math.prod, shapes.values())), 1, torch.bfloat16)
    training = TrainingConfig(steps=1, batch_size=1)
    with pytest.raises(
        ConfigError, match=r"gpus (\d+) training.parallel fsdp training.checkpoint_activations"
    ) as caught:
        check_training_fits(model, shapes, training, memory)
    count = int(str(caught.value).split("gpus ")[1].split()[0])
    fitting = {"batch_size": count, "parallel": "fsdp", "checkpoint_activations": ("**.blocks.*",)}
    check_training_fits(model, shapes, training.model_copy(update=fitting), replace(memory, processes=count))


def test_micro_batches_of_an_enormous_batch_are_found_without_trying_every_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = make_section(TrainingConfig, {"steps": 1, "batch_size": 2**20 * 10**24})
    tried: list[int] = []
    monkeypatch.setattr(estimate, "range", lambda *limits: tried.append(len(range(*limits))) or range(*limits), False)
    with pytest.raises(ConfigError, match="gradient_accumulation_steps"):
        check_training_fits(MODEL, SHAPES, training, DeviceMemory("h100", 10**9))
    assert tried and max(tried) <= estimate.MOST_TRIED  # every number up to the batch took forever
    found = list(
        accumulations(make_section(TrainingConfig, {"steps": 1, "batch_size": 12}), DeviceMemory("h100", 1, 2))
    )
    assert found == [2, 3, 4, 6]


def test_nothing_fits_no_memory() -> None:
    assert refusal(10).endswith("this would fit: a smaller size")

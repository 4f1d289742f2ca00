"""The probe of this machine: a shape that is cut down, and a rate that is a range."""

from __future__ import annotations

import pytest
import torch

from foretell.config import TrainingConfig
from foretell.model.cost import training_flops_per_token
from foretell.model.presets import preset_config
from foretell.planning import speed as probing
from foretell.planning.speed import cut_down, probe, step_flops

MODEL = preset_config("small", vocab_size=256)


@pytest.mark.parametrize("flops", [1.0, 1e10, 1e11])
def test_a_shape_is_cut_down_to_the_operations(flops: float) -> None:
    smaller, rows = cut_down(MODEL, 8, flops)
    done = training_flops_per_token(smaller) * smaller.context_length * rows
    least = training_flops_per_token(MODEL.replaced(num_layers=1)) * MODEL.context_length
    assert done <= max(flops, least)
    assert cut_down(MODEL, 8, 1e18) == (MODEL.replaced(window=None), 8)


def test_the_probe_measures_a_range_of_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "step_seconds", lambda *arguments: [0.5, 0.4])
    training = TrainingConfig(steps=1, batch_size=2, optimizer="adamw")
    found = probe(MODEL, training, torch.device("cpu"), torch.float32)
    work = step_flops(MODEL.replaced(num_layers=found.layers), training.model_copy(update={"batch_size": found.rows}))
    assert found.rate.low == pytest.approx(work / 0.5 / 1.3)
    assert found.rate.high == pytest.approx(work / 0.4 * 1.2)

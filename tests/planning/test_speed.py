"""Time follows from a share of the peak of a GPU, or from the probe of this machine."""

from __future__ import annotations

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import weight_shapes
from foretell.errors import UsageError
from foretell.model.cost import training_flops_per_token
from foretell.model.presets import preset_config
from foretell.planning import speed as probing
from foretell.planning.estimate import Range, training_cost, training_flops
from foretell.planning.speed import (
    ACCELERATORS,
    cut_down,
    find_accelerator,
    probe,
    speed_of,
    step_flops,
)
from foretell.training.optimizer import optimizer_flops_per_step


def test_a_gpu_reaches_a_share_of_its_peak_around_the_measured_one() -> None:
    found = speed_of(ACCELERATORS["h100"])
    assert found.rate.low == pytest.approx(0.43 / 2 * 989e12)
    assert found.rate.high == pytest.approx(0.43 * 1.6 * 989e12)
    assert "43%" in found.measurement


def test_time_is_operations_over_rate() -> None:
    cost = training_cost(Range(1e18, 2e18), TrainingConfig(steps=1), Range(1e12, 4e12), processes=8)
    assert cost.seconds == Range(62_500, 250_000)
    assert cost.device_hours.low == pytest.approx(8 * 62_500 / 3600)
    again = TrainingConfig(steps=1, checkpoint_activations=("**.blocks.*",))
    repeated = training_cost(Range(1e18, 2e18), again, Range(1e12, 4e12), processes=8)
    assert repeated.seconds.low == pytest.approx(62_500 * 4 / 3)
    assert repeated.flops.high == pytest.approx(2e18 * 4 / 3)


def test_operations_count_muons_products_on_every_process_with_copies_and_once_in_shards() -> None:
    model = preset_config("tiny", vocab_size=64)
    training = TrainingConfig(steps=1, batch_size=2, optimizer="muon")
    products = optimizer_flops_per_step(weight_shapes(model), training)
    tokens = 10 * 2 * model.context_length
    copies = training_flops(model, training, tokens, processes=4)
    assert copies.high == tokens * training_flops_per_token(model) + 4 * 10 * products
    shards = training_flops(model, training.model_copy(update={"parallel": "fsdp"}), tokens, processes=4)
    assert copies.high - shards.high == pytest.approx(3 * 10 * products)
    assert copies.low < copies.high


def test_an_unknown_gpu_is_refused() -> None:
    assert find_accelerator("h100") is ACCELERATORS["h100"]
    with pytest.raises(UsageError, match="h10"):
        find_accelerator("h10")


# --- the probe of this machine ---------------------------------------------------------------------------------------


MODEL = preset_config("small", vocab_size=256)


@pytest.mark.parametrize("flops", [1.0, 1e10, 1e11])
def test_a_shape_is_cut_down_to_the_operations(flops: float) -> None:
    training = TrainingConfig(steps=1, batch_size=8)
    smaller, steps = cut_down(MODEL, training, flops)
    done = training_flops_per_token(smaller) * smaller.context_length * steps.batch_size
    least = training_flops_per_token(MODEL.replaced(num_layers=1)) * MODEL.context_length
    assert done <= max(flops, least)
    assert cut_down(MODEL, training, 1e18) == (MODEL.replaced(window=None), training)


def test_the_probe_measures_a_range_of_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[ModelConfig, TrainingConfig]] = []
    monkeypatch.setattr(probing, "step_seconds", lambda *steps: measured.append(steps[:2]) or [0.5, 0.4])
    training = TrainingConfig(steps=1, batch_size=2, optimizer="adamw")
    found = probe(MODEL, training, torch.device("cpu"), torch.float32)
    work = step_flops(*measured[-1])
    assert found.rate.low == pytest.approx(work / 0.5 / 1.3)
    assert found.rate.high == pytest.approx(work / 0.4 * 1.2)
    assert f"{measured[-1][0].num_layers} layers" in found.measurement

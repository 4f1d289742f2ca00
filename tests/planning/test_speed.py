"""Measured trainings predict each other; time and money follow from a share of the peak; the probe of this machine."""

from __future__ import annotations

import pytest
import torch

from foretell.config.training import TrainingConfig
from foretell.errors import UsageError
from foretell.model.cost import training_flops_per_token
from foretell.model.presets import preset_config
from foretell.planning import speed as probing
from foretell.planning.estimate import Range, training_cost, training_flops
from foretell.planning.speed import (
    ACCELERATORS,
    _llama,
    backtest,
    calibrations,
    cut_down,
    find_accelerator,
    nearest,
    probe,
    step_flops,
)
from foretell.training.optimizer import optimizer_flops_per_step
from foretell.weight_shapes import count_parameters, weight_shapes


def test_every_measured_training_is_within_the_range_predicted_from_the_others() -> None:
    predictions = backtest()
    assert {"llm.c, GPT-2 124M", "nanochat d24", "Llama 2 7B", "Llama 2 13B"} < {each.row.name for each in predictions}
    assert [each.row.name for each in predictions if not each.is_right] == []
    assert all(each.basis.row is not each.row for each in predictions)


def test_the_shares_of_the_peak_are_as_computed_by_hand() -> None:
    shares = {row.name: round(row.share, 2) for row in calibrations()}
    assert shares["llm.c, GPT-2 124M"] == 0.60  # 855e6 * 10e9 / (5700 * 8 * 312e12)
    assert shares["nanochat d24"] == 0.50  # 4.33e19 / (10,949 * 8 * 989e12)
    assert shares["Llama 2 7B"] == 0.45
    assert shares["10.7M, AdamW"] == 0.65  # 64% on docs/performance.md, whose peak is rounded


def test_the_shapes_are_those_of_the_papers() -> None:
    assert count_parameters(_llama(32, 32, 4096, 11_008)) == 6_738_415_616
    assert count_parameters(_llama(80, 64, 8192, 28_672, 8)) == 68_976_648_192
    assert count_parameters(preset_config("small", vocab_size=65)) == 4_763_904


def test_only_a_row_of_the_device_within_a_factor_of_two_is_near() -> None:
    row = next(row for row in calibrations() if row.name == "Llama 2 7B")
    near = nearest(1.5 * row.flops_per_token, row.tokens, "a100", [row])
    assert near.is_near
    assert (near.share.low, near.share.high) == pytest.approx((row.share / 1.3, row.share * 1.3))
    assert not nearest(1.5 * row.flops_per_token, 2 * row.tokens, "a100", [row]).is_near
    other = nearest(row.flops_per_token, row.tokens, "h100", [row])
    assert not other.is_near
    assert other.share.low < near.share.low < near.share.high < other.share.high


def test_a_gpu_is_never_predicted_from_a_cpu() -> None:
    cpu = next(row for row in calibrations() if row.device == "cpu")
    assert nearest(cpu.flops_per_token, cpu.tokens, "a100").row.device != "cpu"
    assert nearest(1e12, 1e12, "cpu").row.device == "cpu"


def test_time_and_money_are_operations_over_rate() -> None:
    cost = training_cost(Range(1e18, 2e18), TrainingConfig(steps=1), Range(1e12, 4e12), processes=8, price=2.0)
    assert cost.seconds == Range(62_500, 250_000)
    assert cost.device_hours.low == pytest.approx(8 * 62_500 / 3600)
    assert cost.money is not None
    assert cost.money.high == pytest.approx(2 * 8 * 250_000 / 3600)
    again = TrainingConfig(steps=1, checkpoint_activations=("**.blocks.*",))
    repeated = training_cost(Range(1e18, 2e18), again, Range(1e12, 4e12), processes=8)
    assert repeated.seconds.low == pytest.approx(62_500 * 4 / 3)
    assert repeated.flops.high == pytest.approx(2e18 * 4 / 3)
    assert repeated.money is None


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
    monkeypatch.setattr(probing, "step_seconds", lambda *arguments: [0.5, 0.4])
    training = TrainingConfig(steps=1, batch_size=2, optimizer="adamw")
    found = probe(MODEL, training, torch.device("cpu"), torch.float32)
    work = step_flops(MODEL.replaced(num_layers=found.layers), training.model_copy(update={"batch_size": found.rows}))
    assert found.rate.low == pytest.approx(work / 0.5 / 1.3)
    assert found.rate.high == pytest.approx(work / 0.4 * 1.2)

"""What training needs and uses: memory, disk, and model FLOPs utilisation."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretell.config.training import TrainingConfig
from foretell.errors import ConfigError
from foretell.planning.estimate import DeviceMemory, saved_bytes, state_parts
from foretell.planning.speed import peak_flops
from foretell.session import machine
from foretell.session.fit import check_disk_fits, check_model_fits
from foretell.session.machine import Meter

FLOPS = 30_000  # per token


@pytest.fixture
def meter() -> Meter:
    return Meter(FLOPS, torch.device("cpu"), torch.float32)


def test_mfu_is_the_models_arithmetic_over_the_measured_peak(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "peak_flops", lambda device, dtype: 1e9)
    expected = 1000 * FLOPS / 1e9
    assert meter.mfu(1000.0, seconds=11.0) == pytest.approx(expected, abs=1e-4)


def test_the_peak_is_measured_once_and_never_for_a_short_run(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[torch.dtype] = []
    monkeypatch.setattr(machine, "peak_flops", lambda device, dtype: measured.append(dtype) or 1e9)
    assert meter.mfu(1000.0, seconds=9.0) is None
    assert meter.mfu(None, seconds=90.0) is None
    assert measured == []
    for _ in range(3):
        meter.mfu(1000.0, seconds=11.0)
    assert measured == [torch.float32]


def test_measuring_the_peak_takes_less_than_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart from the time of the last product."""
    now = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now) * 0.05)
    monkeypatch.setattr("foretell.planning.speed.SIDE", 8)
    assert peak_flops(torch.device("cpu"), torch.float32) == pytest.approx(2 * 8**3 / 0.05)
    assert next(now) * 0.05 < 2


def test_peak_memory_is_in_bytes_and_does_not_shrink(meter: Meter) -> None:
    before = meter.peak_memory_bytes()
    block = torch.ones(2**24)  # 64 MiB
    after = meter.peak_memory_bytes()
    del block
    assert before >= 2**25  # torch alone needs more
    assert before <= after == meter.peak_memory_bytes()


# --- memory and disk --------------------------------------------------------------------------------------------------

SHAPES = {"embed.token.weight": (100, 10), "trunk.matrix": (10, 20), "trunk.norm.weight": (10,)}


def training(**changes: Any) -> TrainingConfig:
    return TrainingConfig(steps=1, **changes)


@pytest.mark.parametrize(("optimizer", "moments"), [("adamw", 2 * 1210), ("muon", 2 * 1010 + 200), ("sgd", 1210)])
def test_each_optimizer_is_counted_with_its_own_moments(optimizer: str, moments: int) -> None:
    config = training(optimizer=optimizer)
    assert sum(state_parts(SHAPES, config).values()) == 4 * (2 * 1210 + moments)
    assert saved_bytes(SHAPES, config) == 4 * (1210 + moments)


def test_frozen_weights_need_neither_gradient_nor_moments() -> None:
    config = training(frozen=("embed.**",))
    assert sum(state_parts(SHAPES, config).values()) == 4 * (1000 + 4 * 210)
    assert saved_bytes(SHAPES, config) == 4 * (1000 + 3 * 210)


def test_a_model_that_fits_with_muon_is_not_refused_for_adamws_moments() -> None:
    memory = DeviceMemory("cpu", sum(state_parts(SHAPES, training(optimizer="muon")).values()))
    check_model_fits(SHAPES, training(optimizer="muon"), memory)
    with pytest.raises(ConfigError, match=r"1,210 parameters need 19.4 kB .* cpu memory is 18.6 kB"):
        check_model_fits(SHAPES, training(optimizer="adamw"), memory)


def test_checkpoints_that_fit_the_disk_with_sgd_are_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 3 * saved_bytes(SHAPES, training(optimizer="sgd"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    check_disk_fits(SHAPES, training(optimizer="sgd", keep_checkpoints=1), tmp_path)
    with pytest.raises(ConfigError, match="3 checkpoints need"):
        check_disk_fits(SHAPES, training(optimizer="adamw", keep_checkpoints=1), tmp_path)

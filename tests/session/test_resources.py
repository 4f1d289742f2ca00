"""What training needs and uses: memory, disk, and model FLOPs utilisation."""

from __future__ import annotations

import time

import pytest
import torch

from foretell.session import resources
from foretell.session.resources import Meter, peak_flops

FLOPS = 30_000  # per token


@pytest.fixture
def meter() -> Meter:
    return Meter(FLOPS, torch.device("cpu"), torch.float32)


def test_mfu_is_the_models_arithmetic_over_the_measured_peak(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "peak_flops", lambda device, dtype: 1e9)
    expected = 1000 * FLOPS / 1e9
    assert meter.mfu(1000.0, seconds=11.0) == pytest.approx(expected, abs=1e-4)


def test_the_peak_is_measured_once_and_never_for_a_short_run(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[torch.dtype] = []
    monkeypatch.setattr(resources, "peak_flops", lambda device, dtype: measured.append(dtype) or 1e9)
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
    monkeypatch.setattr(resources, "SIDE", 8)
    assert peak_flops(torch.device("cpu"), torch.float32) == pytest.approx(2 * 8**3 / 0.05)
    assert next(now) * 0.05 < 2


def test_peak_memory_is_in_bytes_and_does_not_shrink(meter: Meter) -> None:
    before = meter.peak_memory_bytes()
    block = torch.ones(2**24)  # 64 MiB
    after = meter.peak_memory_bytes()
    del block
    assert before >= 2**25  # torch alone needs more
    assert before <= after == meter.peak_memory_bytes()

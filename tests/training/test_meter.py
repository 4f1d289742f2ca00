"""Memory, and the share of the matrix rate."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from foretell.model.cost import training_flops_per_token
from foretell.training import meter
from foretell.training.meter import Meter, matrix_rate
from foretell.training.objective import Objective

MakeObjective = Callable[..., Objective]


@pytest.fixture
def watched(make_objective: MakeObjective) -> Meter:
    return Meter(make_objective().decoder.config, torch.device("cpu"), torch.float32)


def test_the_share_is_the_models_arithmetic_over_the_measured_rate(
    watched: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "matrix_rate", lambda device, dtype: 1e9)
    expected = 1000 * training_flops_per_token(watched.config) / 1e9
    assert watched.mfu(1000.0, seconds=11.0) == pytest.approx(expected, abs=1e-4)


def test_the_rate_is_measured_once_and_never_for_a_short_run(watched: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[torch.dtype] = []
    monkeypatch.setattr(meter, "matrix_rate", lambda device, dtype: measured.append(dtype) or 1e9)
    assert watched.mfu(1000.0, seconds=9.0) is None
    assert watched.mfu(None, seconds=90.0) is None
    assert measured == []
    for _ in range(3):
        watched.mfu(1000.0, seconds=11.0)
    assert measured == [torch.float32]


def test_measuring_the_rate_takes_less_than_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own choice: each product could take a whole one."""
    now = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now) * 0.05)
    monkeypatch.setattr(meter, "SIDE", 8)
    assert matrix_rate(torch.device("cpu"), torch.float32) == pytest.approx(2 * 8**3 / 0.05)
    assert next(now) * 0.05 < 2


def test_memory_counts_in_bytes_and_does_not_shrink(watched: Meter) -> None:
    before = watched.peak_memory_bytes()
    block = torch.ones(2**24)  # 64 MiB
    after = watched.peak_memory_bytes()
    del block
    assert before >= 2**25  # torch alone needs more
    assert before <= after == watched.peak_memory_bytes()

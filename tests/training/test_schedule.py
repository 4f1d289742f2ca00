"""Learning rates of each schedule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foretell.config import TrainingConfig
from foretell.training.schedule import learning_rate_at

Settings = Callable[..., TrainingConfig]

# 10 steps of warm-up, then 100 down to a tenth; stable_decay falls in the last 24 of those
CORNERS = {
    "cosine": [(10, 1.0), (35, 0.1 + 0.9 * (0.5 + 0.5**1.5)), (60, 0.55), (110, 0.1)],
    "linear": [(10, 1.0), (35, 0.775), (60, 0.55), (110, 0.1)],
    "stable_decay": [(10, 1.0), (60, 1.0), (86, 1.0), (98, 0.55), (110, 0.1)],
    "constant": [(10, 1.0), (60, 1.0), (110, 1.0)],
}


def share(step: int, settings: Settings, **changes: object) -> float:
    """The learning rate as a share of its largest."""
    config = settings(steps=110, warmup_steps=10, learning_rate=0.02, decay_fraction=0.24, **changes)
    return learning_rate_at(step, config) / 0.02


@pytest.mark.parametrize("schedule", CORNERS)
def test_a_schedule_has_the_expected_rates(schedule: str, settings: Settings) -> None:
    for step, expected in CORNERS[schedule]:
        assert share(step, settings, schedule=schedule) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", CORNERS)
def test_warm_up_is_linear_and_does_not_begin_at_0(schedule: str, settings: Settings) -> None:
    shares = [share(step, settings, schedule=schedule) for step in range(10)]
    assert shares == pytest.approx([(step + 1) / 10 for step in range(10)])


@pytest.mark.parametrize("schedule", CORNERS)
def test_after_warm_up_no_schedule_rises_or_falls_below_its_final_share(schedule: str, settings: Settings) -> None:
    shares = [share(step, settings, schedule=schedule) for step in range(10, 130)]
    assert shares == sorted(shares, reverse=True)
    assert min(shares) >= 0.1 - 1e-12


def test_without_warm_up_the_first_step_has_the_whole_learning_rate(settings: Settings) -> None:
    assert learning_rate_at(0, settings(steps=5, warmup_steps=0, learning_rate=0.02)) == 0.02


def test_a_run_shorter_than_the_warm_up_never_decays(settings: Settings) -> None:
    config = settings(steps=5, warmup_steps=10, learning_rate=1.0)
    assert [learning_rate_at(step, config) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])

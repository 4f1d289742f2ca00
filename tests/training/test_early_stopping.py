"""When training has waited long enough for a better validation loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foretell.config import TrainingConfig
from foretell.training.actions import Progress
from foretell.training.early_stopping import has_lost_patience, note_evaluation

Settings = Callable[..., TrainingConfig]


def evaluations_until_stop(losses: list[float | None], config: TrainingConfig) -> int | None:
    """After how many evaluations training stops; None where it does not."""
    progress = Progress()
    for number, progress.validation_loss in enumerate(losses, start=1):
        note_evaluation(progress)
        if has_lost_patience(progress, config):
            return number
    return None


@pytest.mark.parametrize(
    ("losses", "patience", "stop"),
    [
        ([3.0, 2.0, 1.0, 0.5], 1, None),
        ([3.0, 4.0, 2.0], 1, 2),
        ([3.0, 4.0, 2.0, 5.0], 2, None),
        ([3.0, 4.0, 5.0, 2.0], 2, 3),
        ([3.0, 3.0, 3.0], 2, 3),  # as good is no better
        ([3.0, 2.9, 3.0, 2.95, 2.8, 9.0], 2, 4),  # better than the one before is not better than the best
        ([None, None, None], 1, None),
        ([3.0, 4.0, 5.0, 6.0], None, None),
    ],
)
def test_training_stops_after_so_many_evaluations_without_a_better_one(
    losses: list[float | None], patience: int | None, stop: int | None, settings: Settings
) -> None:
    assert evaluations_until_stop(losses, settings(patience=patience)) == stop


def test_the_first_evaluation_is_the_best_so_far() -> None:
    progress = Progress(validation_loss=3.0)
    assert note_evaluation(progress)
    assert not note_evaluation(progress)
    assert (progress.best_validation_loss, progress.evaluations_since_best) == (3.0, 1)

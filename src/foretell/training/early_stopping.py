"""Early stopping: training ends when the validation loss has not become better for a while (Prechelt 1998).

What it needs to know is in `Progress`, and so in every checkpoint: a resumed run stops where an uninterrupted one does.
"""

from __future__ import annotations

from foretell.config import TrainingConfig
from foretell.training.actions import Progress


def note_evaluation(progress: Progress) -> bool:
    """Count an evaluation that was due; is its loss the best so far?"""
    loss, best = progress.validation_loss, progress.best_validation_loss
    if loss is None:
        return False
    is_best = best is None or loss < best
    if is_best:
        progress.best_validation_loss = loss
    progress.evaluations_since_best = 0 if is_best else progress.evaluations_since_best + 1
    return is_best


def has_lost_patience(progress: Progress, config: TrainingConfig) -> bool:
    """Were there as many evaluations in a row without a better loss as `patience` allows?"""
    return config.patience is not None and progress.evaluations_since_best >= config.patience

"""Training on a handful of rows, by the trainer that trains every model here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from foretell.config import SamplingConfig, TrainingConfig, make_section
from foretell.data.batch import Batch, make_batch
from foretell.generation.engine import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder
from foretell.training.loop import Action, Progress, train
from foretell.training.objective import Objective

# Adam as torch has it, without what the trainer adds for real runs: decay, clipping, a schedule
ADAM: dict[str, Any] = {
    "warmup_steps": 0,
    "schedule": "constant",
    "weight_decay": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "clip_norm": None,
    "batch_size": 1,
}
LIKELIEST = SamplingConfig(temperature=0)


class Rows:
    """A few rows of ids, one a step, over and over."""

    def __init__(self, rows: list[list[int]]):
        self.rows = rows

    def batch(self, step: int) -> Batch:
        return make_batch(np.array([self.rows[step % len(self.rows)]]))


def adam(steps: int, learning_rate: float) -> TrainingConfig:
    """The settings of a training with plain Adam."""
    return make_section(TrainingConfig, {**ADAM, "steps": steps, "learning_rate": learning_rate})


def practise(decoder: Decoder, optimizer: Optimizer, rows: list[list[int]], config: TrainingConfig) -> list[float]:
    """Train on the rows in turn; returns the loss of every step, in nats a token, before its update."""
    losses: list[float] = []

    def remember(progress: Progress) -> None:
        assert progress.loss is not None
        losses.append(progress.loss)

    objective, every_step = Objective(decoder), Action(1, remember)
    train(objective, optimizer, Rows(rows), config, Progress(), [every_step], device=torch.device("cpu"))
    decoder.eval()
    return losses


def continue_with_likeliest(
    decoder: Decoder, prompts: list[list[int]], max_tokens: int | None = None, end_id: int | None = None
) -> list[Sequence]:
    """The prompts with the likeliest token appended, until the end token or as many as are asked for."""
    sequences = [Sequence(prompt) for prompt in prompts]
    for _ in generate(decoder, sequences, Sampler(LIKELIEST), max_tokens, end_id=end_id):
        pass
    return sequences

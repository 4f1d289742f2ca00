"""Training a small decoder on a few rows, by the loop that trains every model, and greedy generation."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.optim import Optimizer

from foretell.config import SamplingConfig, TrainingConfig, make_section
from foretell.data.batch import Batch, make_batch
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import generate
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder
from foretell.training.loop import Action, Progress, train
from foretell.training.objective import Objective

# Plain Adam with torch's defaults: without the weight decay, clipping and schedule of real runs
ADAM: dict[str, Any] = {
    "warmup_steps": 0,
    "schedule": "constant",
    "weight_decay": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "clip_norm": None,
    "batch_size": 1,
}
GREEDY = SamplingConfig(temperature=0, top_p=1.0)


class RepeatedRows:
    """A few rows of ids as training data: one row per step, repeated in order."""

    def __init__(self, rows: list[list[int]]):
        self.rows = rows

    def batch(self, step: int) -> Batch:
        return make_batch(np.array([self.rows[step % len(self.rows)]]))


def adam(steps: int, learning_rate: float) -> TrainingConfig:
    """Training settings for plain Adam."""
    return make_section(TrainingConfig, {**ADAM, "steps": steps, "learning_rate": learning_rate})


def train_on_rows(decoder: Decoder, optimizer: Optimizer, rows: list[list[int]], config: TrainingConfig) -> list[float]:
    """Train on the rows in order; returns the loss of each step before its update, in nats per token."""
    losses: list[float] = []

    def record(progress: Progress) -> None:
        assert progress.loss is not None
        losses.append(progress.loss)

    objective, every_step = Objective(decoder), Action(1, record)
    train(objective, optimizer, RepeatedRows(rows), config, Progress(), [every_step])
    decoder.eval()
    return losses


def generate_greedily(
    decoder: Decoder, prompts: list[list[int]], max_tokens: int | None = None, end_id: int | None = None
) -> list[Sequence]:
    """Continue the prompts with the most likely token at each step, up to `end_id` or `max_tokens`."""
    sequences = [Sequence(prompt) for prompt in prompts]
    for _ in generate(decoder, sequences, Sampler(GREEDY), max_tokens, end_ids=() if end_id is None else [end_id]):
        pass
    return sequences

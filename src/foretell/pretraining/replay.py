"""The batch of a past training step, with a model's loss at every target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from foretell.config.section import make_section
from foretell.config.training import Config
from foretell.errors import UsageError
from foretell.evaluation.replayed_row import ReplayedRow, replayed_row
from foretell.language_model import LanguageModel
from foretell.pretraining.tokens import open_tokens
from foretell.pretraining.training_data import make_training_data
from foretell.runs.record import RUN
from foretell.runs.run import Run
from foretell.training.objective import Objective


@dataclass(frozen=True)
class Replay:
    """The batch of training step `step`, with the losses of a model without dropout.

    `logged_loss` is the loss of this step in metrics.jsonl, with that step's weights and dropout.
    """

    step: int
    loss: float
    logged_loss: float | None
    rows: list[ReplayedRow]

    def to_json(self) -> dict[str, Any]:
        rows = [
            {"start": row.start, "loss": row.loss, "tokens": [vars(token) for token in row.tokens]} for row in self.rows
        ]
        return {"step": self.step, "loss": self.loss, "logged_loss": self.logged_loss, "rows": rows}


@torch.inference_mode()
def replay(run: Run, step: int, model: LanguageModel) -> Replay:
    """The batch of a training step, 1 to the last, with a model's loss at every target."""
    config = make_section(Config, run.record().config, str(run.directory / RUN))
    if not 1 <= step <= config.training.steps:
        raise UsageError(f"{run.directory} has steps 1 to {config.training.steps:,}, not {step:,}")
    text = open_tokens(run.tokens, model.tokenizer)
    data = make_training_data(text, config)
    batch = data.batch(step - 1)  # `batch` counts from 0
    objective = Objective(model.decoder).eval()
    parts = [batch.rows(row, row + 1) for row in range(len(batch.ids))]  # one row at a time needs the least memory
    losses = torch.cat([objective.token_losses(part.to(model.device)).cpu() for part in parts])  # (B, T)
    extents = [data.extent((step - 1) * data.batch_size + row) for row in range(len(losses))]
    rows = [
        replayed_row(batch, losses, row, model.tokenizer, extent.tokens, extent.start)
        for row, extent in enumerate(extents)
    ]
    logged = {line["step"]: line.get("loss") for line in run.metrics.records()}
    mean = float((losses * batch.loss_weights).sum()) / max(batch.count, 1.0)
    return Replay(step, mean, logged.get(step), rows)

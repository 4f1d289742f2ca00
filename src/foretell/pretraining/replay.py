"""The batch of any step of a run, recomputed: the order of the data is a function of seed and step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from foretell.config import Config, make_section
from foretell.data.batch import Batch
from foretell.errors import UsageError
from foretell.language_model import LanguageModel
from foretell.pretraining.tokens import open_tokens
from foretell.pretraining.training_data import TrainingData, make_training_data
from foretell.runs.run import RUN, Run
from foretell.session.task import ReplayedRow, ReplayedToken
from foretell.training.objective import Objective


@dataclass(frozen=True)
class Replay:
    """The batch of step `step` of training, with the losses of some weights and without dropout.

    `logged_loss` is the loss of this step in metrics.jsonl: with the weights of that step, and with dropout.
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
    """The batch that training had in a step, 1 to the last, with a model's loss at every target."""
    config = make_section(Config, run.record()["config"], str(run.directory / RUN))
    if not 1 <= step <= config.training.steps:
        raise UsageError(f"{run.directory} has steps 1 to {config.training.steps:,}, not {step:,}")
    text = open_tokens(run.tokens, model.tokenizer)
    data = make_training_data(text, config)
    batch = data.batch(step - 1)  # counted from 0 there
    objective = Objective(model.decoder).eval()
    parts = [batch.rows(row, row + 1) for row in range(len(batch.ids))]  # one row at a time needs the least memory
    losses = torch.cat([objective.token_losses(part.to(model.device)).cpu() for part in parts])  # (B, T)
    rows = [make_row(data, batch, losses, (step - 1) * data.batch_size + row, model) for row in range(len(losses))]
    logged = {line["step"]: line.get("loss") for line in run.metrics()}
    mean = float((losses * batch.loss_weights).sum()) / max(batch.count, 1.0)
    return Replay(step, mean, logged.get(step), rows)


def make_row(data: TrainingData, batch: Batch, losses: torch.Tensor, index: int, model: LanguageModel) -> ReplayedRow:
    """One row of a batch without its padding; the first token is not a target, and others may have no loss."""
    row, extent = index % data.batch_size, data.extent(index)
    ids = [*batch.ids[row].tolist(), int(batch.targets[row, -1])][: extent.tokens]
    counted = [False, *(batch.loss_weights[row] > 0).tolist()]
    row_losses = [0.0, *losses[row].tolist()]
    documents = documents_of(batch, row)[: len(ids)]
    tokens = [
        ReplayedToken(token, model.tokenizer.decode([token]), loss if is_counted else None, document)
        for token, loss, is_counted, document in zip(
            ids, row_losses, counted, documents, strict=False
        )  # without the padding
    ]
    return ReplayedRow(extent.start, tokens)


def documents_of(batch: Batch, row: int) -> list[int | None]:
    """The index of each token's document within the row, from 0; the last token's follows from its weight."""
    if batch.document_ids is None:
        return [None] * (batch.ids.shape[1] + 1)
    document_ids = batch.document_ids[row]
    indices = (document_ids - document_ids[0]).tolist()
    return [*indices, indices[-1] + int(batch.loss_weights[row, -1] == 0)]

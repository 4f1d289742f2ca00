"""The batch of any step of a run, again: the order of the data is a function, so that nothing had to be kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from foretell.config import Config, make_section
from foretell.data.batch import Batch
from foretell.data.loader import Loader
from foretell.errors import UsageError
from foretell.language_model import LanguageModel
from foretell.pretraining.prepare import make_loader, open_tokens
from foretell.runs.run import RUN, Run
from foretell.training.objective import Objective


@dataclass(frozen=True)
class ReplayedToken:
    """A token of a row. `loss` is -log P of it in nats, None where it was no target: the first of a row or document.

    `document` counts within the row, where documents do not see each other; else it is None.
    """

    id: int
    text: str
    loss: float | None
    document: int | None


@dataclass(frozen=True)
class ReplayedRow:
    """A row, and where in the tokens of the training text it begins."""

    start: int
    tokens: list[ReplayedToken]

    @property
    def loss(self) -> float | None:
        """The mean over the targets."""
        losses = [token.loss for token in self.tokens if token.loss is not None]
        return sum(losses) / len(losses) if losses else None


@dataclass(frozen=True)
class Replay:
    """The batch that was number `step` of training, with the losses of some weights and without dropout.

    `logged_loss` is what metrics.jsonl says of this step: that of the weights of then, with dropout.
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
        raise UsageError(f"{run.directory} has steps 1 to {config.training.steps:,}, and no step {step:,}")
    text = open_tokens(run.tokens, model.tokenizer)
    loader = make_loader(text, config)
    batch = loader.batch(step - 1)  # counted from 0 there
    objective = Objective(model.decoder).eval()
    parts = [batch.rows(row, row + 1) for row in range(len(batch.ids))]  # as much memory as one row needs
    losses = torch.cat([objective.token_losses(part.to(model.device)).cpu() for part in parts])  # (B, T)
    rows = [make_row(loader, batch, losses, (step - 1) * loader.batch_size + row, model) for row in range(len(losses))]
    logged = {metrics["step"]: metrics.get("loss") for metrics in run.metrics()}
    mean = float((losses * batch.loss_weights).sum()) / max(batch.count, 1.0)
    return Replay(step, mean, logged.get(step), rows)


def make_row(loader: Loader, batch: Batch, losses: torch.Tensor, window: int, model: LanguageModel) -> ReplayedRow:
    """One row of a batch: its T + 1 tokens, of which all but the first are targets or were left out."""
    row = window % loader.batch_size
    ids = [*batch.ids[row].tolist(), int(batch.targets[row, -1])]
    counted = [False, *(batch.loss_weights[row] > 0).tolist()]
    found = [0.0, *losses[row].tolist()]
    documents = documents_of(batch, row)
    tokens = [
        ReplayedToken(one, model.tokenizer.decode([one]), loss if is_counted else None, document)
        for one, loss, is_counted, document in zip(ids, found, counted, documents, strict=True)
    ]
    return ReplayedRow(loader.window_start(window), tokens)


def documents_of(batch: Batch, row: int) -> list[int | None]:
    """The number of each token's document within the row, from 0; that of the last token follows from its weight."""
    if batch.document_ids is None:
        return [None] * (batch.ids.shape[1] + 1)
    document_ids = batch.document_ids[row]
    numbers = (document_ids - document_ids[0]).tolist()
    return [*numbers, numbers[-1] + int(batch.loss_weights[row, -1] == 0)]

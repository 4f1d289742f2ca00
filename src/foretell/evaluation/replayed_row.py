"""A row of a training batch, token by token, with a model's losses."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.data.batch import Batch
from foretell.text import Tokenizer


@dataclass(frozen=True)
class ReplayedToken:
    """A token of a row. `loss` is its -log P in nats, None if it was not a target: the first of a row or
    document, or one that is masked.

    `document` counts documents within the row if they do not see each other; else it is None.
    """

    id: int
    text: str
    loss: float | None
    document: int | None


@dataclass(frozen=True)
class ReplayedRow:
    """A row. start: its first position in the tokens of the training text; None if it is not one part of a text.

    total: its loss, for an objective that is not the mean over the targets.
    """

    start: int | None
    tokens: list[ReplayedToken]
    total: float | None = None

    @property
    def loss(self) -> float | None:
        """The loss of the row: by default, the mean over the targets."""
        if self.total is not None:
            return self.total
        losses = [token.loss for token in self.tokens if token.loss is not None]
        return sum(losses) / len(losses) if losses else None


def replayed_row(
    batch: Batch, losses: Tensor, row: int, tokenizer: Tokenizer, count: int, start: int | None = None
) -> ReplayedRow:
    """The first `count` tokens of a row of a batch, to the last target. losses: (B, T), for all targets."""
    ids = [*batch.ids[row].tolist(), int(batch.targets[row, -1])]
    is_learned = [False, *(batch.loss_weights[row] > 0).tolist()]
    documents: list[int | None] = [None] * len(ids)
    if batch.document_ids is not None:
        indices = (batch.document_ids[row] - batch.document_ids[row, 0]).tolist()
        documents = [*indices, indices[-1] + int(not is_learned[-1])]
    columns = zip(ids[:count], [0.0, *losses[row].tolist()], is_learned, documents, strict=False)
    tokens = [
        ReplayedToken(token, tokenizer.decode([token]), loss if learned else None, document)
        for token, loss, learned, document in columns
    ]
    return ReplayedRow(start, tokens)

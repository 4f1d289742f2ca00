"""A batch of conversations token by token: what is learned, with its loss, and what is masked."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.data.batch import PADDING, Batch
from foretell.model.decoder import Decoder
from foretell.session.task import ReplayedRow, ReplayedToken
from foretell.text import Tokenizer
from foretell.training.objective import Objective


@torch.no_grad()
def replay_batch(decoder: Decoder, batch: Batch, tokenizer: Tokenizer, rows: int = 2) -> list[ReplayedRow]:
    """The first rows of a batch without their padding, with losses in evaluation mode of the tokens that are learned.

    A row's last target is left out if it is not learned: it may be padding.
    """
    part, was_training = batch.rows(0, rows), decoder.training
    losses = Objective(decoder.eval()).token_losses(part).cpu()  # (B, T)
    decoder.train(was_training)
    part = part.to("cpu")
    return [ReplayedRow(0, make_tokens(part, losses, row, tokenizer)) for row in range(len(part))]


def make_tokens(batch: Batch, losses: Tensor, row: int, tokenizer: Tokenizer) -> list[ReplayedToken]:
    """The tokens of one row; the loss of each is that of the position before it."""
    assert batch.document_ids is not None, "conversations are packed with document ids"
    is_learned = [False, *(batch.loss_weights[row] > 0).tolist()]
    documents = batch.document_ids[row].tolist()
    ids = batch.ids[row].tolist()
    if is_learned[-1]:
        ids, documents = [*ids, int(batch.targets[row, -1])], [*documents, documents[-1]]
    before = [0.0, *losses[row].tolist()]
    return [
        ReplayedToken(token, tokenizer.decode([token]), before[index] if is_learned[index] else None, document)
        for index, (token, document) in enumerate(zip(ids, documents, strict=True))
        if document != PADDING
    ]

"""The one form in which every kind of data reaches a model, and the one place where targets are shifted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

IGNORED = 0  # the target where there is nothing to predict; its weight is 0
PADDING = -1  # the document number of what fills up a row


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and what should follow each of them; all tensors are (B, T).

    loss_weights: 1 where the target counts, 0 where it does not. positions and document_ids are None where every row
    is one document that starts at position 0, so that the fused kernel needs no mask.
    """

    ids: Tensor
    targets: Tensor
    loss_weights: Tensor
    positions: Tensor | None = None
    document_ids: Tensor | None = None

    def __len__(self) -> int:
        """Rows."""
        return len(self.ids)

    @property
    def count(self) -> float:
        """How many targets count."""
        return float(self.loss_weights.sum())

    def rows(self, first: int, last: int) -> Batch:
        """Some of the rows."""
        return self._map(lambda tensor: tensor[first:last])

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        optional = (None if tensor is None else change(tensor) for tensor in (self.positions, self.document_ids))
        return Batch(change(self.ids), change(self.targets), change(self.loss_weights), *optional)


def make_batch(tokens: np.ndarray, lengths: list[int] | None = None) -> Batch:
    """Rows of T+1 tokens (B, T+1): each predicts the next. Of row b only the first lengths[b] tokens are real."""
    tensor = torch.from_numpy(np.ascontiguousarray(tokens, dtype=np.int64))
    loss_weights = torch.ones(tensor[:, 1:].shape)
    if lengths is not None:
        loss_weights = (torch.arange(loss_weights.shape[1]) + 1 < torch.tensor(lengths)[:, None]).float()
    return Batch(tensor[:, :-1], tensor[:, 1:], loss_weights)


def make_document_batch(tokens: np.ndarray, documents: np.ndarray) -> Batch:
    """Like `make_batch`, with the number of the document each token belongs to, (B, T+1); padding has PADDING.

    Documents do not see each other, positions restart in each, and the last token of one does not predict the next.
    """
    plain = make_batch(tokens)
    numbers = torch.from_numpy(documents)
    document_ids = numbers[:, :-1]
    loss_weights = ((document_ids == numbers[:, 1:]) & (numbers[:, 1:] != PADDING)).float()
    columns = torch.arange(document_ids.shape[1]).expand_as(document_ids)
    is_first = torch.ones_like(document_ids, dtype=torch.bool)
    is_first[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    starts = torch.where(is_first, columns, 0).cummax(dim=1).values
    return Batch(plain.ids, plain.targets, loss_weights, columns - starts, document_ids)


def pad(sequences: list[list[int]], length: int | None = None) -> tuple[np.ndarray, list[int]]:
    """Sequences of any length as rows of one (B, length), filled up on the right, with their true lengths."""
    lengths = [len(sequence) for sequence in sequences]
    rows = np.full((len(sequences), length or max(lengths)), IGNORED, dtype=np.int64)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    return rows, lengths

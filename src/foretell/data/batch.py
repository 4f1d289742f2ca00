"""Batch: the form of all data for models. Targets are shifted only here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.system.device import to_device

IGNORED = 0  # stands for a missing target; its loss weight is 0
PADDING = -1  # the document id of padding


@dataclass(frozen=True)
class Rows:
    """Tensors of B rows, such as token ids."""

    ids: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, first: int, last: int, stride: int = 1) -> Self:
        """Every `stride`-th row from `first` to `last`."""
        return self._map(lambda tensor: tensor[first:last:stride])

    def to(self, device: torch.device | str) -> Self:
        return self._map(lambda tensor: to_device(tensor, device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items()})


@dataclass(frozen=True)
class Batch(Rows):
    """Token ids and the target of each; all tensors are (B, T).

    loss_weights: 1 if the target counts in the loss, else 0. positions and document_ids are None if every row is one
    document that starts at position 0; then the fused kernel needs no mask. lengths: (B,) the tokens of each row before
    the padding; None if no row is padded.
    """

    targets: Tensor
    loss_weights: Tensor
    positions: Tensor | None = None
    document_ids: Tensor | None = None
    lengths: Tensor | None = None

    @property
    def count(self) -> float:
        """The number of targets in the loss."""
        return float(self.loss_weights.sum())

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads, without padding."""
        return self.ids.numel() if self.lengths is None else int(self.lengths.sum())


def make_batch(tokens: np.ndarray, lengths: list[int] | None = None, loss_mask: np.ndarray | None = None) -> Batch:
    """A batch of tokens (B, T+1), each with the next as its target. Row b has lengths[b] tokens before its padding.

    loss_mask (B, T+1): 1 for tokens that count in the loss as targets, else 0; None: all count. Raises UsageError for
    tokens that are not rows of ids.
    """
    try:
        given = np.asarray(tokens)
    except ValueError:
        raise UsageError("tokens must be rows of the same length; pad them, and give their lengths") from None
    if given.ndim != 2 or given.shape[1] < 2 or given.dtype.kind not in "iu":
        raise UsageError(f"tokens must be ids (B, T+1), T of 1 or more, not {given.dtype} of shape {given.shape}")
    tensor = torch.from_numpy(np.ascontiguousarray(given, dtype=np.int64))
    loss_weights = torch.ones(tensor[:, 1:].shape)
    read = None
    for name, values, shape in (("lengths", lengths, given.shape[:1]), ("loss_mask", loss_mask, given.shape)):
        if values is not None and np.shape(values) != shape:
            raise UsageError(f"{name} must be numbers of shape {shape}")
    if lengths is not None:
        room = loss_weights.shape[1]
        loss_weights = (torch.arange(room) + 1 < torch.tensor(lengths)[:, None]).float()
        read = torch.tensor(lengths).clamp(max=room)
    if loss_mask is not None:
        loss_weights = loss_weights * torch.from_numpy(np.asarray(loss_mask)[:, 1:])
    return Batch(tensor[:, :-1], tensor[:, 1:], loss_weights, lengths=read)


def make_document_batch(tokens: np.ndarray, document_of: np.ndarray) -> Batch:
    """Like `make_batch`, with the id of each token's document, (B, T+1); padding has PADDING.

    Attention does not cross documents, positions restart in each, and the last token of a document has no target.
    """
    plain = make_batch(tokens)
    all_ids = torch.from_numpy(document_of)
    document_ids, target_ids = all_ids[:, :-1], all_ids[:, 1:]
    loss_weights = ((document_ids == target_ids) & (target_ids != PADDING)).float()
    columns = torch.arange(document_ids.shape[1]).expand_as(document_ids)
    is_first = torch.ones_like(document_ids, dtype=torch.bool)
    is_first[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    starts = torch.where(is_first, columns, 0).cummax(dim=1).values
    lengths = (document_ids != PADDING).sum(1)
    return Batch(plain.ids, plain.targets, loss_weights, columns - starts, document_ids, lengths)


def pad(sequences: list[list[int]], length: int | None = None) -> tuple[np.ndarray, list[int]]:
    """Pad sequences on the right to one array (B, length); returns it and their lengths."""
    lengths = [len(sequence) for sequence in sequences]
    rows = np.full((len(sequences), length or max(lengths)), IGNORED, dtype=np.int64)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    return rows, lengths


def padded_groups(lengths: list[int], limit: int) -> Iterator[list[int]]:
    """Group the indices of rows, shortest first; a group of several rows has at most `limit` tokens with padding."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if group and (len(group) + 1) * lengths[index] > limit:
            yield group
            group = []
        group.append(index)
    if group:
        yield group

"""Separate rows of tokens, each with its loss mask, as batches: one to a row of a batch, or packed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from foretell.data.batch import IGNORED, PADDING, Batch, make_batch, make_document_batch, pad
from foretell.data.loader import EpochOrder, iter_spread
from foretell.data.shards import TokenStore, TokenStream


def loss_split(name: str) -> str:
    """The name of the split that has the loss mask of a split."""
    return f"{name}_loss"


class TokensInMemory:
    """Documents in memory, read like a split of a token store. documents: the ids of each, at least one."""

    def __init__(self, documents: Sequence[Sequence[int]]):
        self._ids = np.concatenate([np.zeros(0, np.int64), *(np.asarray(each, np.int64) for each in documents)])
        lengths = np.array([len(each) for each in documents], dtype=np.int64)
        self.document_starts = np.cumsum(lengths) - lengths

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, start: int, count: int) -> np.ndarray:
        """Ids `start` to `start + count` (count,) int64."""
        return self._ids[start : start + count]


Tokens = TokenStream | TokensInMemory


class RowStream:
    """The rows of a split: each document is one row. `lengths` (rows,) counts the tokens of each.

    A store of rows has the ids in a split such as `train`. If not all tokens count in the loss, a split `train_loss`
    has the loss mask: 1 for a token that counts as a target, else 0. `loss` is that split, or None.
    """

    def __init__(self, tokens: Tokens, loss: Tokens | None = None):
        self.tokens, self.loss = tokens, loss
        self.starts = tokens.document_starts
        self.lengths = np.diff(self.starts, append=len(tokens))

    @classmethod
    def open(cls, store: TokenStore, name: str) -> RowStream:
        loss = loss_split(name)
        return cls(store.split(name), store.split(loss) if loss in store.splits else None)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def longest(self) -> int:
        """The number of tokens in the longest row; 0 without rows."""
        return int(self.lengths.max(initial=0))

    @property
    def num_targets(self) -> int:
        """The number of tokens that count in the loss."""
        return len(self.tokens) - len(self) if self.loss is None else int(self.loss.read(0, len(self.loss)).sum())

    def ids(self, row: int) -> list[int]:
        return self.tokens.read(int(self.starts[row]), int(self.lengths[row])).tolist()

    def loss_mask(self, row: int) -> np.ndarray:
        """1 for each token that counts as a target, else 0; (tokens,)."""
        if self.loss is None:
            return np.ones(int(self.lengths[row]), np.int64)
        return self.loss.read(int(self.starts[row]), int(self.lengths[row]))

    def prompt(self, row: int) -> list[int]:
        """The ids before the first one that counts in the loss.

        Without a loss mask: up to the first end token if an answer follows it, else the first half (at least one).
        """
        ids = self.ids(row)
        if self.loss is None:
            first_end = ids.index(ids[-1]) + 1  # a row ends with the end token
            return ids[: first_end if first_end < len(ids) else max(1, len(ids) // 2)]
        mask = self.loss_mask(row)
        return ids[: int(np.argmax(mask)) if mask.any() else len(ids)]


class RowBatches(ABC):
    """Batches of rows, in a new random order in every epoch. order_name: the name of the random stream."""

    def __init__(self, rows: RowStream, seed: int, order_name: str):
        self.rows, self.seed, self.order_name = rows, seed, order_name

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows of batches in an epoch."""

    @cached_property
    def order(self) -> EpochOrder:
        return EpochOrder(self.order_name, self.seed, len(self))

    def batch(self, step: int, batch_size: int) -> Batch:
        """The batch of a step, counted from 0; it depends only on the step and the seed."""
        return self.make_batch(self.order.items(step, batch_size))

    def iter_batches(self, batch_size: int, max_tokens: int | None = None) -> Iterator[Batch]:
        """All rows in order; with max_tokens, evenly spread rows are left out until about max_tokens tokens remain."""
        most = None if max_tokens is None else self.num_rows_of(max_tokens)
        yield from map(self.make_batch, iter_spread(len(self), most, batch_size))

    @property
    @abstractmethod
    def longest(self) -> int:
        """The largest length of a row of a batch (T)."""

    @property
    @abstractmethod
    def described(self) -> str:
        """The form of the batches, for people."""

    @abstractmethod
    def rows_in(self, row: int) -> list[int]:
        """The indices of the rows of tokens in a row of batches."""

    @abstractmethod
    def num_rows_of(self, tokens: int) -> int:
        """The number of rows that have about this number of tokens."""

    @abstractmethod
    def make_batch(self, rows: Sequence[int]) -> Batch:
        """The batch (B, T) of these rows."""


class PaddedRows(RowBatches):
    """Each row is a row of a batch, padded on the right to the longest row of its batch.

    Causal attention hides the padding from all tokens before it, and it does not count in the loss.
    """

    def __init__(self, rows: RowStream, seed: int = 0, order_name: str = "row order"):
        super().__init__(rows, seed, order_name)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def longest(self) -> int:
        return max(1, self.rows.longest - 1)

    @property
    def described(self) -> str:
        shortest = int(self.rows.lengths.min(initial=self.rows.longest))
        lengths = f"{shortest:,} to {self.rows.longest:,}" if shortest < self.rows.longest else f"{shortest:,}"
        return f"of {lengths} tokens, padded, never joined"

    def rows_in(self, row: int) -> list[int]:
        return [row]

    def num_rows_of(self, tokens: int) -> int:
        return tokens * len(self.rows) // max(1, len(self.rows.tokens))

    def make_batch(self, rows: Sequence[int]) -> Batch:
        """T is one less than the tokens of the longest row."""
        length = int(self.rows.lengths[list(rows)].max())
        tokens, lengths = pad([self.rows.ids(row) for row in rows], length)
        if self.rows.loss is None:
            return make_batch(tokens, lengths)
        loss_mask, _ = pad([self.rows.loss_mask(row).tolist() for row in rows], length)
        return make_batch(tokens, lengths, loss_mask)


class PackedRows(RowBatches):
    """Several rows in a row of a batch, with document ids and positions, so that attention stays within each.

    length: the length of the rows of batches (T); a row of tokens has at most `context_length` + 1. `packed` has the
    indices of the rows of tokens in each. They are the same in every epoch.
    """

    def __init__(self, rows: RowStream, context_length: int, seed: int = 0, order_name: str = "row order"):
        super().__init__(rows, seed, order_name)
        self.length = min(context_length, max(1, len(rows.tokens) - 1))  # shorter if all rows together are

    @cached_property
    def packed(self) -> list[list[int]]:
        return pack(self.rows.lengths.tolist(), self.length + 1)

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def longest(self) -> int:
        return self.length

    @property
    def described(self) -> str:
        padding = 1 - len(self.rows.tokens) / max(1, len(self) * (self.length + 1))
        return f"packed into {len(self):,} of {self.length} tokens, {padding:.0%} padding"

    def rows_in(self, row: int) -> list[int]:
        return self.packed[row]

    def num_rows_of(self, tokens: int) -> int:
        return tokens // self.length

    def make_batch(self, rows: Sequence[int]) -> Batch:
        """T is `length` in every batch."""
        shape = len(rows), self.length + 1
        ids = np.full(shape, IGNORED, dtype=np.int64)
        documents = np.full(shape, PADDING, dtype=np.int64)
        loss_mask = np.zeros(shape, dtype=np.float32)
        for index, row in enumerate(rows):
            start = 0
            for document, packed in enumerate(self.rows_in(row)):
                span = slice(start, start + int(self.rows.lengths[packed]))
                ids[index, span], documents[index, span] = self.rows.ids(packed), document
                loss_mask[index, span] = self.rows.loss_mask(packed)
                start = span.stop
        batch = make_document_batch(ids, documents)
        return replace(batch, loss_weights=batch.loss_weights * torch.from_numpy(loss_mask[:, 1:]))


def pack(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Pack items into rows of at most `room` by best fit, longest first (as in Krell et al. 2021, section 3.1).

    Each item goes into the fullest row that has room for it.
    """
    rows: list[list[int]] = []
    space: list[tuple[int, int]] = []  # (remaining room, row), sorted
    for item in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        at = bisect_left(space, (lengths[item], -1))
        left, row = space.pop(at) if at < len(space) else (room, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(item)
        insort(space, (left - lengths[item], row))
    return rows

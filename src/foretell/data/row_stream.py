"""Rows of their own: every document of a split is one row, padded to the longest of its batch, next to no other.

A store of rows has the ids of each in a split such as `train`, and, where not all of them count in the loss, the loss
mask in a split `train_loss`: as many values, 1 for a token that counts as a target, else 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from torch import Tensor

from foretell.data.batch import Batch, make_batch, pad
from foretell.data.shards import TokenStore, TokenStream
from foretell.randomness import permutation, stream_key


def loss_split(name: str) -> str:
    """The name of the split with the loss mask of a split."""
    return f"{name}_loss"


class RowStream:
    """The rows of a split: `lengths` (rows,) counts the tokens of each; `loss` has the loss mask, if there is one."""

    def __init__(self, tokens: TokenStream, loss: TokenStream | None = None):
        self.tokens, self.loss = tokens, loss
        self.starts = tokens.document_starts
        self.lengths = np.diff(self.starts, append=len(tokens))

    @classmethod
    def open(cls, store: TokenStore, name: str) -> RowStream:
        """The rows of a split of a store, with its loss mask if it has one."""
        loss = loss_split(name)
        return cls(store.split(name), store.split(loss) if loss in store.splits else None)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.starts)

    @property
    def longest(self) -> int:
        """Tokens of the longest row; 0 without rows."""
        return int(self.lengths.max(initial=0))

    def ids(self, row: int) -> list[int]:
        """The ids of one row."""
        return self.tokens.read(int(self.starts[row]), int(self.lengths[row])).tolist()

    def prompt(self, row: int) -> list[int]:
        """The ids before the first that counts in the loss; without a loss mask the first half, at least one."""
        ids = self.ids(row)
        if self.loss is None:
            return ids[: max(1, len(ids) // 2)]
        mask = self._loss_mask(row)
        return ids[: int(np.argmax(mask)) if mask.any() else len(ids)]

    def batch(self, rows: Sequence[int]) -> Batch:
        """These rows, padded on the right to the longest of them: (B, T) with T one less than its tokens.

        Causal attention hides the padding from every token before it, and it does not count in the loss.
        """
        length = int(self.lengths[list(rows)].max())
        tokens, lengths = pad([self.ids(row) for row in rows], length)
        if self.loss is None:
            return make_batch(tokens, lengths)
        loss_mask, _ = pad([self._loss_mask(row).tolist() for row in rows], length)
        return make_batch(tokens, lengths, loss_mask)

    def _loss_mask(self, row: int) -> np.ndarray:
        assert self.loss is not None
        return self.loss.read(int(self.starts[row]), int(self.lengths[row]))


class RowLoader:
    """The batch of any step: rows in a new random order in every epoch, each once."""

    def __init__(self, rows: RowStream, batch_size: int, seed: int):
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.order = lru_cache(maxsize=2)(self._order)  # a batch can straddle two epochs

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0."""
        return self.rows.batch([self.row(step * self.batch_size + index) for index in range(self.batch_size)])

    def row(self, index: int) -> int:
        """The row of the data that is the `index`-th of the training."""
        epoch, position = divmod(index, len(self.rows))
        return int(self.order(epoch)[position])

    def _order(self, epoch: int) -> Tensor:
        return permutation(stream_key("row order", self.seed, epoch), len(self.rows))


def iter_row_batches(rows: RowStream, batch_size: int, max_tokens: int | None = None) -> Iterator[Batch]:
    """The rows in their order; with max_tokens, rows evenly spread over them until about that many tokens remain."""
    count, kept = len(rows), len(rows)
    if max_tokens is not None:
        kept = min(count, max(1, max_tokens * count // max(1, len(rows.tokens))))
    chosen = [index * count // kept for index in range(kept)]
    for first in range(0, kept, batch_size):
        yield rows.batch(chosen[first : first + batch_size])

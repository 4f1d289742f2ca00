"""Conversations packed into rows: as many in a row as fit, none of which sees another."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from foretell.data.batch import IGNORED, PADDING, Batch, make_document_batch
from foretell.randomness import permutation, stream_key
from foretell.text.chat_format import ChatTokens


class PackedChats:
    """Conversations of at most `context_length` + 1 tokens as rows of batches.

    length: of a row (T): the context's, unless all conversations together are shorter. Batches have document ids and
    positions, so that attention stays within a conversation, and loss weights of 1 where the target belongs to an
    answer. The rows are the same in every epoch, their order is not.
    """

    def __init__(self, chats: Sequence[ChatTokens], context_length: int, seed: int = 0):
        self.chats, self.seed = chats, seed
        lengths = [len(chat) for chat in chats]
        self.length = min(context_length, max(1, sum(lengths) - 1))
        self.rows = pack(lengths, self.length + 1)
        self.order = lru_cache(maxsize=2)(self._order)  # a batch can straddle two epochs

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows)

    @property
    def share_of_padding(self) -> float:
        """How much of the rows is padding."""
        return 1 - sum(map(len, self.chats)) / max(1, len(self.rows) * (self.length + 1))

    @property
    def answer_tokens(self) -> int:
        """How many tokens are learned in an epoch."""
        return sum(chat.answer_tokens for chat in self.chats)

    def batch(self, step: int, batch_size: int) -> Batch:
        """The batch of a step, counted from 0: a function of the step and the seed alone."""
        return self.make_batch([self.row_at(step * batch_size + row) for row in range(batch_size)])

    def row_at(self, index: int) -> int:
        """The row that is the `index`-th of the training."""
        epoch, position = divmod(index, len(self.rows))
        return int(self.order(epoch)[position])

    def _order(self, epoch: int) -> Tensor:
        return permutation(stream_key("chats", self.seed, epoch), len(self.rows))

    def iter_batches(self, batch_size: int, max_tokens: int | None = None) -> Iterator[Batch]:
        """All rows in order, or evenly spread ones with about `max_tokens` tokens."""
        count = len(self.rows)
        kept = count if max_tokens is None else max(1, min(count, max_tokens // self.length))
        chosen = [index * count // kept for index in range(kept)]
        for first in range(0, kept, batch_size):
            yield self.make_batch(chosen[first : first + batch_size])

    def make_batch(self, rows: Sequence[int]) -> Batch:
        """The batch (B, T) of these rows; T is `length` in every batch."""
        shape = len(rows), self.length + 1
        ids = np.full(shape, IGNORED, dtype=np.int64)
        documents = np.full(shape, PADDING, dtype=np.int64)
        is_answer = np.zeros(shape, dtype=np.float32)
        for index, row in enumerate(rows):
            start = 0
            for document, number in enumerate(self.rows[row]):
                chat = self.chats[number]
                place = slice(start, start + len(chat))
                ids[index, place], documents[index, place], is_answer[index, place] = chat.ids, document, chat.is_answer
                start += len(chat)
        batch = make_document_batch(ids, documents)
        return replace(batch, loss_weights=batch.loss_weights * torch.from_numpy(is_answer[:, 1:]))


def pack(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Items in rows of at most `room`, by best fit, longest first (as in Krell et al. 2021, section 3.1).

    Each item goes into the fullest row that has room for it.
    """
    rows: list[list[int]] = []
    space: list[tuple[int, int]] = []  # what is left in each row, and the row; sorted
    for item in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        at = bisect_left(space, (lengths[item], -1))
        left, row = space.pop(at) if at < len(space) else (room, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(item)
        insort(space, (left - lengths[item], row))
    return rows

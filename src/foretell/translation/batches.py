"""Batches of pairs, packed into rows and counted in tokens; the batch of a step depends only on (seed, step)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from foretell.data.batch import PADDING, Batch, pad
from foretell.errors import DataError
from foretell.model.cache import FreshKVView, KVView
from foretell.model.memory_cache import ConditionedKVView
from foretell.numerics.randomness import permutation, stream_key
from foretell.training.objective import Objective
from foretell.translation.encoder_decoder import EncoderDecoder, Source
from foretell.translation.pairs import EncodedPair

ROW_TOKENS = 64  # minimum width of a row, per language; 32, 48 and 96 were not faster


@dataclass(frozen=True)
class PairBatch(Batch):
    """The target tokens that the decoder reads and predicts (teacher forcing), and the source of each row.

    A row has several pairs. The document ids of both sides mark the tokens of each pair; positions restart in each.
    """

    positions: Tensor = field(kw_only=True)
    document_ids: Tensor = field(kw_only=True)
    lengths: Tensor = field(kw_only=True)
    source: Source = field(kw_only=True)

    @property
    def tokens(self) -> int:
        """The number of tokens of both languages, without padding."""
        return super().tokens + sum(self.source.lengths)

    def rows(self, first: int, last: int, stride: int = 1) -> PairBatch:
        """Every `stride`-th row from `first` to `last`.

        They keep the batch's width, because dropout masks in attention depend on it.
        """
        return replace(super().rows(first, last, stride), source=self.source.rows(first, last, stride))

    def to(self, device: torch.device | str) -> PairBatch:
        return replace(super().to(device), source=self.source.to(device))


def make_pair_batch(pairs: Sequence[EncodedPair], context_length: int, fewest: int = 1) -> PairBatch:
    """Pack pairs into rows that are about equally long on both sides.

    A row is at most as long as the context or the longest pair. fewest: the minimum number of rows, if there are enough
    pairs.
    """
    lengths = np.array([pair.lengths for pair in pairs])
    rows = [[pairs[index] for index in row] for row in share_out(lengths, context_length, fewest)]
    source_ids, source_positions, source_documents = lay_out([[pair.source for pair in row] for row in rows])
    ids, positions, documents = lay_out([[pair.target[:-1] for pair in row] for row in rows])
    targets, _, _ = lay_out([[pair.target[1:] for pair in row] for row in rows])
    source_lengths = [sum(pair.lengths[0] for pair in row) for row in rows]
    return PairBatch(
        ids,
        targets,
        loss_weights=(documents != PADDING).float(),
        positions=positions,
        document_ids=documents,
        lengths=(documents != PADDING).sum(1),
        source=Source(source_ids, source_lengths, source_positions, source_documents),
    )


def share_out(lengths: np.ndarray, context_length: int, fewest: int) -> list[list[int]]:
    """Distribute pairs of lengths (N, 2) to about equally long rows of indices: each goes to the row with most room."""
    totals, longest = np.maximum(lengths.sum(0), 1), lengths.max(0)
    limit, width = max(context_length, *longest), np.maximum(longest, min(ROW_TOKENS, context_length))
    count = min(len(lengths), max(fewest, math.ceil((totals / width).max())))
    while True:
        loads, rows = np.zeros((count, 2)), [list[int]() for _ in range(count)]  # loads: shares of each side's tokens
        for index in np.argsort(-lengths.sum(1), kind="stable").tolist():
            row = int((loads + lengths[index] / totals).max(1).argmin())
            loads[row] += lengths[index] / totals
            rows[row].append(index)
        if max(lengths[row].sum(0).max() for row in rows) <= limit:
            return rows
        count = min(len(lengths), count + 1 + count // 16)


def lay_out(rows: Sequence[Sequence[np.ndarray]]) -> tuple[Tensor, Tensor, Tensor]:
    """Concatenate the sentences of each row, padded on the right: ids, positions and document ids, (B, T) each."""
    shape = len(rows), max(sum(map(len, row)) for row in rows)
    ids, positions, documents = np.zeros(shape, int), np.zeros(shape, int), np.full(shape, PADDING)
    for row, sentences in enumerate(rows):
        first = 0
        for document, sentence in enumerate(sentences):
            last = first + len(sentence)
            ids[row, first:last], positions[row, first:last] = sentence, np.arange(len(sentence))
            documents[row, first:last] = document
            first = last
    return torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(documents)


def make_source(sentences: list[list[int]]) -> Source:
    """One sentence per row, for generation."""
    ids, lengths = pad(sentences)
    return Source(torch.from_numpy(ids), lengths)


class PairLoader:
    """All pairs once per epoch, in a new order, in batches of about `batch_tokens` tokens of both sides.

    fewest: the minimum number of rows per batch, so that several processes and micro-batches can share it.
    """

    def __init__(
        self, pairs: Sequence[EncodedPair], batch_tokens: int, seed: int, context_length: int, fewest: int = 1
    ):
        if not pairs:
            raise DataError("no pair is left to learn from; give more pairs")
        self.pairs, self.seed, self.context_length, self.fewest = pairs, seed, context_length, fewest
        self.lengths = np.array([pair.lengths for pair in pairs])  # (N, 2)
        self.batches_per_epoch = count_batches(self.lengths, batch_tokens)
        self.order = lru_cache(maxsize=2)(self._order)

    def batch(self, step: int) -> PairBatch:
        epoch, index = divmod(step, self.batches_per_epoch)
        members = self.order(epoch)[index]
        return make_pair_batch([self.pairs[member] for member in members], self.context_length, self.fewest)

    def _order(self, epoch: int) -> list[np.ndarray]:
        """The pairs of each batch of an epoch."""
        shuffled = permutation(stream_key("order", self.seed, epoch), len(self.pairs)).numpy()
        return cut(shuffled, self.lengths[shuffled], self.batches_per_epoch)


def count_batches(lengths: np.ndarray, batch_tokens: int) -> int:
    """The number of batches for pairs of lengths (N, 2), such that each has at least a pair."""
    tokens = lengths.sum(1)
    return max(1, min(round(tokens.sum() / batch_tokens), int(tokens.sum() // tokens.max())))


def cut(pairs: np.ndarray, lengths: np.ndarray, count: int) -> list[np.ndarray]:
    """Cut pairs of lengths (N, 2), in order, into `count` parts with about the same number of tokens."""
    ends = lengths.sum(1).cumsum()
    return np.split(pairs, np.searchsorted(ends * count, ends[-1] * np.arange(1, count), side="right"))


def evaluation_batches(pairs: Sequence[EncodedPair], batch_tokens: int, context_length: int) -> list[PairBatch]:
    """All pairs once, in order."""
    lengths = np.array([pair.lengths for pair in pairs])
    parts = cut(np.arange(len(pairs)), lengths, count_batches(lengths, batch_tokens))
    return [make_pair_batch([pairs[index] for index in part], context_length) for part in parts]


class PairObjective(Objective):
    """`Objective` for the target side of a batch of pairs; the decoder reads the memory of the source side."""

    has_one_shape = False

    def make_view(self, batch: Batch) -> KVView:
        """The view in which target tokens see only the tokens of their pair, in both languages."""
        assert isinstance(batch, PairBatch)
        assert isinstance(self.decoder, EncoderDecoder)
        own = FreshKVView(batch.ids, batch.positions, batch.document_ids)
        memory = self.decoder.encode(batch.source)
        assert batch.source.document_ids is not None
        memory.keep_to_documents(batch.document_ids, batch.source.document_ids)
        return ConditionedKVView(own, memory)

"""Batches of pairs of all lengths, counted in tokens; the batch of a step is a function of (seed, step)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch

from foretell.data.batch import Batch, make_batch, pad
from foretell.errors import DataError
from foretell.model.cache import ConditionedKVView, FreshKVView, KVView
from foretell.randomness import permutation, stream_key
from foretell.training.objective import Loss, Objective
from foretell.translation.encoder_decoder import EncoderDecoder, Source
from foretell.translation.pairs import EncodedPair

GROUPS = 4  # of a batch, each of pairs of similar length


@dataclass(frozen=True)
class PairBatch(Batch):
    """The target tokens that the decoder reads and predicts (teacher forcing), and the source of each row."""

    source: Source = field(kw_only=True)
    row_lengths: np.ndarray = field(kw_only=True)  # the tokens of each row without padding, source and target, (B, 2)

    @property
    def tokens(self) -> int:
        """The number of tokens of both languages, without padding."""
        return int(self.row_lengths.sum())

    def rows(self, first: int, last: int, stride: int = 1) -> PairBatch:
        """Rows `first` to `last`, every `stride`-th of them, without columns that are padding in all of them."""
        chosen = slice(first, last, stride)
        lengths, source = self.row_lengths[chosen], self.source.rows(first, last, stride)
        target = (tensor[chosen, : lengths[:, 1].max()] for tensor in (self.ids, self.targets, self.loss_weights))
        return PairBatch(*target, source=source, row_lengths=lengths)

    def to(self, device: torch.device | str) -> PairBatch:
        return replace(super().to(device), source=self.source.to(device))


def make_pair_batch(pairs: Sequence[EncodedPair]) -> PairBatch:
    """Pairs as one batch; shorter ones are padded on the right."""
    target = make_batch(*pad([pair.target.tolist() for pair in pairs]))
    source = make_source([pair.source.tolist() for pair in pairs])
    return PairBatch(**vars(target), source=source, row_lengths=np.array([pair.lengths for pair in pairs]))


def make_source(sentences: list[list[int]]) -> Source:
    ids, lengths = pad(sentences)
    return Source(torch.from_numpy(ids), lengths)


class PairLoader:
    """All pairs once per epoch, in batches of at most `batch_tokens` tokens of both sides, in a new order each time.

    A batch has pairs of all lengths, in up to GROUPS groups of similar length, so that its gradient is not the one of
    short sentences or of long ones: docs/translation.md has the measurement. The groups share the tokens equally; only
    a pair that is longer than the share of a group exceeds it. Padding inside the groups counts.
    """

    def __init__(self, pairs: Sequence[EncodedPair], batch_tokens: int, seed: int):
        if not pairs:
            raise DataError("no pair is left to learn from; give more pairs")
        self.pairs, self.seed = pairs, seed
        self.lengths = np.array([pair.lengths for pair in pairs])  # (N, 2)
        in_order = self.lengths[sort_by_length(self.lengths)]
        self.ranges = cut(in_order, batch_tokens // GROUPS)
        self.batches_per_epoch = math.ceil(len(self.ranges) / GROUPS)
        self.order = lru_cache(maxsize=2)(self._order)
        padded = sum((last - first) * in_order[first:last].max(0).sum() for first, last in self.ranges)
        self.padding = 1 - int(self.lengths.sum()) / int(padded)  # the share of padding among all tokens

    def batch(self, step: int) -> PairBatch:
        epoch, index = divmod(step, self.batches_per_epoch)
        members, groups = self.order(epoch)
        ranges = (self.ranges[group] for group in groups[index :: self.batches_per_epoch])
        return make_pair_batch([self.pairs[member] for first, last in ranges for member in members[first:last]])

    def _order(self, epoch: int) -> tuple[list[int], list[int]]:
        """The pairs by length, and the groups: the first of each batch, then the second of each, and so on."""
        shuffled = permutation(stream_key("order", self.seed, epoch), len(self.pairs)).numpy()
        members, groups = shuffled[sort_by_length(self.lengths[shuffled])], list[int]()
        for first in range(0, len(self.ranges), self.batches_per_epoch):
            count = min(self.batches_per_epoch, len(self.ranges) - first)
            order = permutation(stream_key("batches", self.seed, epoch, first), count)
            groups += (first + order).tolist()
        return members.tolist(), groups


def sort_by_length(lengths: np.ndarray) -> np.ndarray:
    """The order of pairs (N, 2) by the length of the source, then of the target; equal ones stay in order."""
    return np.lexsort((lengths[:, 1], lengths[:, 0]))


def cut(lengths: np.ndarray, batch_tokens: int) -> list[tuple[int, int]]:
    """Consecutive ranges of sorted pairs (N, 2) that hold at most `batch_tokens` tokens when padded, and one at least.

    A range ends where the source gets longer, unless it is less than half full: most batches need no source padding.
    """
    ranges, first, longest = [], 0, np.zeros(2, dtype=np.int64)
    for index, pair in enumerate(lengths):
        rows, wider = index - first, np.maximum(longest, pair)
        is_full = (rows + 1) * wider.sum() > batch_tokens
        is_longer = pair[0] > longest[0] and 2 * rows * longest.sum() > batch_tokens
        if rows and (is_full or is_longer):
            ranges.append((first, index))
            first, wider = index, pair
        longest = wider
    return [*ranges, (first, len(lengths))]


def evaluation_batches(pairs: Sequence[EncodedPair], batch_tokens: int) -> list[PairBatch]:
    """All pairs once, in batches of similar length."""
    lengths = np.array([pair.lengths for pair in pairs])
    order = sort_by_length(lengths)
    ranges = cut(lengths[order], batch_tokens)
    return [make_pair_batch([pairs[index] for index in order[first:last]]) for first, last in ranges]


class PairObjective(Objective):
    """`Objective` on the target side of a batch of pairs; the decoder reads the memory of the source side.

    batch_tokens: a process that trains alone reads a batch in groups of rows of similar length, which saves most of the
    padding, with at most this number of tokens on a GPU and a share of it on a CPU. Several processes need the same
    number of passes: one. The loss is the same.
    """

    has_one_shape = False

    def __init__(self, decoder: EncoderDecoder, label_smoothing: float = 0.0, batch_tokens: int | None = None):
        super().__init__(decoder, label_smoothing=label_smoothing)
        self.batch_tokens = batch_tokens

    def forward(self, batch: Batch) -> Loss:
        assert isinstance(batch, PairBatch)
        rng = self.decoder.dropout_rng
        if self.batch_tokens is None or rng.row_stride > 1:
            return super().forward(batch)
        at_once = self.batch_tokens // (GROUPS if batch.ids.device.type == "cpu" else 1)
        first_row, losses = rng.first_row, list[Loss]()
        for first, last in cut(batch.row_lengths, at_once):
            rng.first_row = first_row + first  # the dropout of a row does not depend on its group
            losses.append(super().forward(batch.rows(first, last)))
        rng.first_row = first_row
        parts = {name: torch.stack([loss.parts[name] for loss in losses]).sum() for name in losses[0].parts}
        sums, counts = torch.stack([loss.sum for loss in losses]), torch.stack([loss.count for loss in losses])
        return Loss(sums.sum(), counts.sum(), parts)

    def make_view(self, batch: Batch) -> KVView:
        """The keys that the target tokens of a batch may see."""
        assert isinstance(batch, PairBatch)
        assert isinstance(self.decoder, EncoderDecoder)
        return ConditionedKVView(FreshKVView(batch.ids), self.decoder.encode(batch.source))

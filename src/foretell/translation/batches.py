"""Batches of pairs of similar length, counted in tokens; the batch of a step is a function of (seed, step)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from foretell.data.batch import Batch, make_batch, pad
from foretell.errors import DataError
from foretell.model.cache import ConditionedKVView, FreshKVView, KVView
from foretell.randomness import permutation, stream_key
from foretell.training.objective import Objective
from foretell.translation.encoder_decoder import EncoderDecoder, Source
from foretell.translation.pairs import EncodedPair


@dataclass(frozen=True)
class PairBatch(Batch):
    """The target tokens that the decoder reads and predicts (teacher forcing), and the source of each row."""

    source: Source = field(kw_only=True)

    @property
    def tokens(self) -> int:
        """The number of tokens of both languages, without padding."""
        return super().tokens + sum(self.source.lengths)

    def rows(self, first: int, last: int, stride: int = 1) -> PairBatch:
        return pair_batch(super().rows(first, last, stride), self.source.rows(first, last, stride))

    def to(self, device: torch.device | str) -> PairBatch:
        return pair_batch(super().to(device), self.source.to(device))


def pair_batch(target: Batch, source: Source) -> PairBatch:
    return PairBatch(**vars(target) | {"source": source})


def make_pair_batch(pairs: Sequence[EncodedPair]) -> PairBatch:
    """Pairs as one batch; shorter ones are padded on the right."""
    targets, lengths = pad([pair.target.tolist() for pair in pairs])
    return pair_batch(make_batch(targets, lengths), make_source([pair.source.tolist() for pair in pairs]))


def make_source(sentences: list[list[int]]) -> Source:
    ids, lengths = pad(sentences)
    return Source(torch.from_numpy(ids), lengths)


class PairLoader:
    """All pairs once per epoch, sorted by length in batches of at most `batch_tokens` tokens, in a new order each time.

    Tokens of both sides count, padding included. Pairs of equal length change places between epochs, and so do the
    batches; the lengths of the batches are the same in all epochs.
    """

    def __init__(self, pairs: Sequence[EncodedPair], batch_tokens: int, seed: int):
        if not pairs:
            raise DataError("no pair is left to learn from; give more pairs")
        self.pairs, self.seed = pairs, seed
        self.lengths = np.array([pair.lengths for pair in pairs])  # (N, 2)
        in_order = self.lengths[sort_by_length(self.lengths)]
        self.ranges = cut(in_order, batch_tokens)
        self.order = lru_cache(maxsize=2)(self._order)
        padded = sum((last - first) * in_order[first:last].max(0).sum() for first, last in self.ranges)
        self.padding = 1 - int(self.lengths.sum()) / int(padded)  # the share of padding among all tokens

    @property
    def batches_per_epoch(self) -> int:
        return len(self.ranges)

    def batch(self, step: int) -> PairBatch:
        epoch, index = divmod(step, self.batches_per_epoch)
        members, batches = self.order(epoch)
        first, last = self.ranges[batches[index]]
        return make_pair_batch([self.pairs[member] for member in members[first:last]])

    def _order(self, epoch: int) -> tuple[list[int], list[int]]:
        """The pairs by length, and the batches in the order of their use."""
        shuffled = permutation(stream_key("order", self.seed, epoch), len(self.pairs)).numpy()
        members = shuffled[sort_by_length(self.lengths[shuffled])]
        batches = permutation(stream_key("batches", self.seed, epoch), self.batches_per_epoch)
        return members.tolist(), batches.tolist()


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
    """`Objective` on the target side of a batch of pairs; the decoder reads the memory of the source side."""

    has_one_shape = False

    def make_view(self, batch: Batch) -> KVView:
        """The keys that the target tokens of a batch may see."""
        assert isinstance(batch, PairBatch)
        assert isinstance(self.decoder, EncoderDecoder)
        return ConditionedKVView(FreshKVView(batch.ids), self.decoder.encode(batch.source))

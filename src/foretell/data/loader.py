"""Which tokens make up the batch of a step: a pure function of (seed, step), whoever asks and whenever."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from torch import Tensor

from foretell.data.batch import PADDING, Batch, make_batch, make_document_batch, pad
from foretell.data.shards import TokenStream
from foretell.errors import DataError
from foretell.randomness import permutation, random_word, stream_key


class Loader:
    """Windows of T+1 tokens in an order that is new in every epoch, rows `rank::world` of each global batch.

    An epoch goes once through the text in windows that follow each other without overlap. Each epoch shifts all windows
    by a random offset, so that no token is always the first of its window and none is left out of every epoch.
    """

    def __init__(
        self,
        stream: TokenStream,
        context_length: int,
        batch_size: int,
        seed: int,
        *,
        document_mask: bool = False,
        rank: int = 0,
        world: int = 1,
    ):
        check_enough_tokens(len(stream), context_length)
        self.stream, self.context_length, self.batch_size, self.seed = stream, context_length, batch_size, seed
        self.document_mask, self.rank, self.world = document_mask, rank, world
        whole = (len(stream) - 1) // context_length
        self.windows_per_epoch = max(1, whole - 1)
        self.shifts = len(stream) - self.windows_per_epoch * context_length  # how many there are: 1 to 2T
        self.order = lru_cache(maxsize=2)(self._order)  # a batch can straddle two epochs

    def batch(self, step: int) -> Batch:
        """This rank's rows of the global batch of a step."""
        rows = range(self.rank, self.batch_size, self.world)
        starts = [self.window_start(step * self.batch_size + row) for row in rows]
        tokens = np.stack([self.stream.read(start, self.context_length + 1) for start in starts])  # (B, T+1)
        if not self.document_mask:
            return make_batch(tokens)
        return make_document_batch(tokens, document_numbers(self.stream, starts, self.context_length + 1))

    def window_start(self, index: int) -> int:
        """Where the `index`-th window since the beginning of training starts in the stream."""
        epoch, place = divmod(index, self.windows_per_epoch)
        shift = random_word(stream_key("shift", self.seed, epoch), 0) % self.shifts
        return shift + int(self.order(epoch)[place]) * self.context_length

    def _order(self, epoch: int) -> Tensor:
        return permutation(stream_key("order", self.seed, epoch), self.windows_per_epoch)


def check_enough_tokens(tokens: int, context_length: int) -> None:
    """Refuse a text that does not fill one window."""
    if tokens < context_length + 1:
        raise DataError(
            f"the training text has {tokens} tokens, less than one context of {context_length} and the token after it; "
            "give more text, or take a model with a smaller context (of a new one: --model.context-length)"
        )


def iter_evaluation_batches(
    stream: TokenStream,
    context_length: int,
    batch_size: int,
    max_tokens: int | None = None,
    document_mask: bool = False,
) -> Iterator[Batch]:
    """The stream in windows that follow each other without overlap, so that every token but the first is a target once.

    With max_tokens, whole windows are left out, evenly spread, until about that many tokens remain.
    """
    count = max(1, math.ceil((len(stream) - 1) / context_length))
    kept = count if max_tokens is None else max(1, min(count, max_tokens // context_length))
    starts = [index * count // kept * context_length for index in range(kept)]
    for first in range(0, kept, batch_size):
        yield _evaluation_batch(stream, context_length, starts[first : first + batch_size], document_mask)


def _evaluation_batch(stream: TokenStream, context_length: int, starts: list[int], document_mask: bool) -> Batch:
    rows = [stream.read(start, min(context_length + 1, len(stream) - start)).tolist() for start in starts]
    tokens, lengths = pad(rows)
    if not document_mask:
        return make_batch(tokens, lengths)
    documents = document_numbers(stream, starts, tokens.shape[1])
    documents[np.arange(tokens.shape[1]) >= np.array(lengths)[:, None]] = PADDING
    return make_document_batch(tokens, documents)


def document_numbers(stream: TokenStream, starts: list[int], length: int) -> np.ndarray:
    """The number of the document that each token of each window belongs to, (B, length)."""
    places = np.array(starts)[:, None] + np.arange(length)
    return np.searchsorted(stream.document_starts, places, side="right")

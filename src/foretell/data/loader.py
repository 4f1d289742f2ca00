"""The batch of a training step as a pure function of (seed, step), and the batches of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from foretell.data.batch import PADDING, Batch, make_batch, make_document_batch, pad
from foretell.data.shards import TokenStream
from foretell.errors import DataError
from foretell.numerics.randomness import permutation, random_word, stream_key


class EpochOrder:
    """A new random order of `count` items in every epoch. name: the name of the random stream."""

    def __init__(self, name: str, seed: int, count: int):
        self.count = count
        # A batch can span two epochs
        self._order = lru_cache(maxsize=2)(lambda epoch: permutation(stream_key(name, seed, epoch), count))

    def item(self, index: int) -> int:
        """The `index`-th item, counted over all epochs."""
        epoch, position = divmod(index, self.count)
        return int(self._order(epoch)[position])

    def items(self, step: int, batch_size: int) -> list[int]:
        return [self.item(step * batch_size + row) for row in range(batch_size)]


class ShuffledStream:
    """The documents of a stream in another order, read like the stream itself.

    order: (documents,) int64, a permutation. Memory: 16 bytes per document, for any length of the text.
    """

    def __init__(self, stream: TokenStream, order: np.ndarray):
        self.stream = stream
        lengths = np.diff(stream.document_starts, append=len(stream))[order]  # (documents,)
        self.document_starts = np.cumsum(lengths) - lengths  # positions in this order, increasing from 0
        self.source_starts = stream.document_starts[order]  # positions in the stream

    def __len__(self) -> int:
        return len(self.stream)

    def read(self, start: int, count: int) -> np.ndarray:
        """Ids `start` to `start + count` (count,) int64, across documents. Raises the errors of `TokenStream.read`."""
        assert start >= 0 and count >= 0 and start + count <= len(self)
        pieces = [np.empty(0, np.int64)]
        document = int(np.searchsorted(self.document_starts, start, side="right")) - 1
        while count:
            offset = start - int(self.document_starts[document])
            piece = self.stream.read(
                int(self.source_starts[document]) + offset, min(count, self._end(document) - start)
            )
            pieces.append(piece)
            start, count, document = start + len(piece), count - len(piece), document + 1
        return np.concatenate(pieces)

    def _end(self, document: int) -> int:
        following = document + 1
        return int(self.document_starts[following]) if following < len(self.document_starts) else len(self)


class Loader:
    """Windows of T+1 tokens in a new random order in every epoch.

    An epoch reads the text once in consecutive windows without overlap. Each epoch shifts all windows by a random
    offset, so that no token is always the first of its window, and none is left out of every epoch.
    shuffle_documents: each epoch has a new random order of documents, so that windows across documents join different
    ones.
    """

    def __init__(
        self,
        stream: TokenStream,
        context_length: int,
        batch_size: int,
        seed: int,
        *,
        document_mask: bool = False,
        shuffle_documents: bool = False,
    ):
        check_enough_tokens(len(stream), context_length)
        self.stream, self.context_length, self.batch_size, self.seed = stream, context_length, batch_size, seed
        self.document_mask, self.shuffle_documents = document_mask, shuffle_documents
        whole = (len(stream) - 1) // context_length
        self.windows_per_epoch = max(1, whole - 1)
        self.shifts = len(stream) - self.windows_per_epoch * context_length  # the number of possible shifts, 1 to 2T
        self.order = EpochOrder("order", seed, self.windows_per_epoch)
        self.text = lru_cache(maxsize=2)(self._text)  # a batch can span two epochs

    def batch(self, step: int) -> Batch:
        indices = range(step * self.batch_size, (step + 1) * self.batch_size)
        windows = [(self.text(index // self.windows_per_epoch), self.window_start(index)) for index in indices]
        tokens = np.stack([text.read(start, self.context_length + 1) for text, start in windows])  # (B, T+1)
        if not self.document_mask:
            return make_batch(tokens)
        document_ids = [find_document_ids(text, [start], self.context_length + 1) for text, start in windows]
        return make_document_batch(tokens, np.concatenate(document_ids))

    def window_start(self, index: int) -> int:
        """The position, in its epoch's text, where the `index`-th window of the training starts."""
        shift = random_word(stream_key("shift", self.seed, index // self.windows_per_epoch), 0) % self.shifts
        return shift + self.order.item(index) * self.context_length

    def _text(self, epoch: int) -> TokenStream | ShuffledStream:
        if not self.shuffle_documents:
            return self.stream
        key = stream_key("document order", self.seed, epoch)
        return ShuffledStream(self.stream, permutation(key, len(self.stream.document_starts)).numpy())


def check_enough_tokens(tokens: int, context_length: int, as_bytes: int = 0) -> None:
    """Raise DataError for a text that is shorter than one window.

    as_bytes: the text's size if bytes could be its tokens: repetitive text has few tokens in other vocabularies.
    """
    if tokens < context_length + 1:
        other = f", or --kind bytes, which makes {as_bytes:,} tokens of it" if as_bytes > context_length else ""
        raise DataError(
            f"the training text has {tokens} tokens, less than one context of {context_length} and the token after it; "
            f"give more text{other}, or use a model with a smaller context (for a new one: --model.context-length)"
        )


def iter_evaluation_batches(
    stream: TokenStream,
    context_length: int,
    batch_size: int,
    max_tokens: int | None = None,
    document_mask: bool = False,
) -> Iterator[Batch]:
    """The stream in consecutive windows without overlap, so that every token except the first is a target once.

    With max_tokens, evenly spread windows are left out until about max_tokens tokens remain.
    """
    count = max(1, math.ceil((len(stream) - 1) / context_length))
    most = None if max_tokens is None else max_tokens // context_length
    for windows in iter_spread(count, most, batch_size):
        yield _evaluation_batch(stream, context_length, [index * context_length for index in windows], document_mask)


def iter_spread(count: int, most: int | None, batch_size: int) -> Iterator[list[int]]:
    """The indices of `most` items (at least one; None: all), evenly spread over `count`, `batch_size` at a time."""
    kept = count if most is None else min(count, max(1, most))
    chosen = [index * count // kept for index in range(kept)]
    for first in range(0, kept, batch_size):
        yield chosen[first : first + batch_size]


def _evaluation_batch(stream: TokenStream, context_length: int, starts: list[int], document_mask: bool) -> Batch:
    rows = [stream.read(start, min(context_length + 1, len(stream) - start)).tolist() for start in starts]
    tokens, lengths = pad(rows)
    if not document_mask:
        return make_batch(tokens, lengths)
    document_of = find_document_ids(stream, starts, tokens.shape[1])
    document_of[np.arange(tokens.shape[1]) >= np.array(lengths)[:, None]] = PADDING
    return make_document_batch(tokens, document_of)


def find_document_ids(stream: TokenStream | ShuffledStream, starts: list[int], length: int) -> np.ndarray:
    """The id (from 1) of the document that each token of each window belongs to, (B, length)."""
    positions = np.array(starts)[:, None] + np.arange(length)
    return np.searchsorted(stream.document_starts, positions, side="right")

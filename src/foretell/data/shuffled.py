"""The documents of a token store in another order, read from its shards as needed: nothing is moved or copied."""

from __future__ import annotations

import numpy as np

from foretell.data.shards import TokenStream


class ShuffledStream:
    """The documents of a stream one after the other in a given order, read like the stream itself.

    order: (documents,) int64, a permutation. Memory: 16 bytes per document, for any length of the text.
    """

    def __init__(self, stream: TokenStream, order: np.ndarray):
        self.stream = stream
        lengths = np.diff(stream.document_starts, append=len(stream))[order]  # (documents,)
        self.document_starts = np.cumsum(lengths) - lengths  # here, increasing from 0
        self.source_starts = stream.document_starts[order]  # in the stream

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.stream)

    def read(self, start: int, count: int) -> np.ndarray:
        """Ids `start` to `start + count` (count,) int64, across documents. Raises what `TokenStream.read` raises."""
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

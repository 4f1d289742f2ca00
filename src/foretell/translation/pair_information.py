"""Initial token vectors of a translation model, from the mutual information of tokens in the same pairs.

Tokens of the same pairs start with similar vectors, so a word starts near its translation: latent semantic analysis of
both languages together (Dumais et al. 1997). It takes seconds and saves the first third of a short training (measured
in docs/translation-reference.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from foretell.training.similar_vectors import positive_log, set_similar_vectors
from foretell.translation.batches import EncodedPair
from foretell.translation.encoder_decoder import EncoderDecoder

MOST_TOKENS = 2**14  # tokens of both vocabularies: a gigabyte of counts
MOST_PRODUCTS = 2**26  # counted co-occurrences; five seconds
AT_ONCE = 2**21


def give_similar_vectors(model: EncoderDecoder, pairs: Sequence[EncodedPair], seed: int) -> None:
    """Set the vector of each token in the pairs according to its pairs. Other vectors do not change.

    The result depends only on pairs and seed. Does nothing for very large vocabularies.
    """
    target, source = model.embed.token.weight, model.encoder.embed.token.weight
    weights = [target] if source is target else [target, source]
    size = sum(map(len, weights))
    if size <= MOST_TOKENS:
        information = mutual_information(count_together(pairs, size, size - len(source)))
        set_similar_vectors(weights, information, seed)


def count_together(pairs: Sequence[EncodedPair], size: int, shift: int) -> Tensor:
    """The number of pairs in which two tokens occur together, (V, V) with V = size; each token's count on the diagonal.

    shift: added to the ids of the source. If there are too many pairs, every n-th is counted.
    """
    every = math.ceil(sum((len(pair.source) + len(pair.target)) ** 2 for pair in pairs) / MOST_PRODUCTS)
    by_count: dict[int, list[np.ndarray]] = {}
    for pair in pairs[::every]:
        own = np.unique(np.concatenate((pair.source + shift, pair.target))).astype(np.int64)
        by_count.setdefault(len(own), []).append(own)
    counts = torch.zeros(size * size)
    for count, members in by_count.items():
        for part in torch.from_numpy(np.stack(members)).split(max(1, AT_ONCE // count**2)):  # (n, count)
            cells = (part[:, :, None] * size + part[:, None, :]).flatten()
            counts.index_add_(0, cells, torch.ones(len(cells)))
    return counts.view(size, size)


def mutual_information(counts: Tensor) -> Tensor:
    """max(0, log(P(a, b) / (P(a) P(b)))) in nats for tokens a and b of a pair, from their counts, in place."""
    alone = counts.diagonal().clone()  # the largest is the number of pairs, because all have an end token
    return positive_log(counts.mul_(alone.max()).div_(alone).div_(alone[:, None]))

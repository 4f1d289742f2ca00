"""Initial token vectors: tokens that occur in the same pairs begin with similar vectors, a word near its translation.

This is latent semantic analysis of both languages together (Dumais et al. 1997) with positive pointwise mutual
information (Levy and Goldberg 2014). It takes seconds and saves the first third of a short training:
docs/translation.md has the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.translation.batches import EncodedPair
from foretell.translation.encoder_decoder import EncoderDecoder

STD = 0.05  # of the elements; with 0.3 the first 50 steps only make the vectors smaller
MOST_TOKENS = 2**14  # of both vocabularies: a gigabyte of counts
MOST_PRODUCTS = 2**26  # counted co-occurrences; five seconds
AT_ONCE = 2**21
LEAST = 0.01  # nats; less is rounding: tokens that are in no pair or, as the end token, in all


@torch.no_grad()
def set_similar_vectors(model: EncoderDecoder, pairs: Sequence[EncodedPair], seed: int) -> None:
    """Give each token of the pairs a vector that depends on the pairs that it is in. Others keep theirs.

    A function of pairs and seed. With very large vocabularies nothing is changed.
    """
    target, source = model.embed.token.weight, model.encoder.embed.token.weight
    weights = [target] if source is target else [target, source]
    size = sum(map(len, weights))
    if size > MOST_TOKENS:
        return
    information = mutual_information(count_together(pairs, size, size - len(source)))
    vectors = similar_vectors(information, model.shape.width, seed)
    is_known = information.amax(1) > LEAST
    first = 0
    for weight in weights:
        own = slice(first, first := first + len(weight))
        weight[is_known[own]] = STD * vectors[own][is_known[own]].to(weight)


def count_together(pairs: Sequence[EncodedPair], size: int, shift: int) -> Tensor:
    """In how many pairs two tokens occur together, (V, V), for V = size; on the diagonal, in how many a token occurs.

    shift: added to the ids of the source. Of too many pairs every n-th is counted.
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
    alone = counts.diagonal().clone()  # the largest is the number of pairs: all have an end token
    return counts.mul_(alone.max()).div_(alone).div_(alone[:, None]).log_().nan_to_num_(nan=0.0).clamp_(min=0.0)


def similar_vectors(information: Tensor, width: int, seed: int) -> Tensor:
    """Vectors (V, D) of length sqrt(D), whose products approximate the information up to a factor for each token."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        basis, strength, _ = torch.svd_lowrank(information, min(width, len(information)))
        turn, _ = torch.linalg.qr(torch.randn(width, width))  # else the first elements were the largest
    vectors = F.pad(basis * strength.sqrt(), (0, width - len(strength))) @ turn
    return F.normalize(vectors, dim=1) * math.sqrt(width)

"""Initial token vectors: tokens that occur next to the same tokens start with similar vectors.

This is latent semantic analysis with positive pointwise mutual information (Bullinaria and Levy 2007). It takes less
than a second and replaces the first steps of a training, in which random embeddings learn little else; measured in
docs/training.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CONTEXTS = 2**10  # the most frequent tokens; with a quarter of them, a tenth of the gain is lost
MOST_COUNTS = 2**26  # so a vocabulary of 262,144 has 128 contexts on either side
MOST_TOKENS = 2**23  # tokens of the text that are read; two seconds
SMOOTHING = 0.75  # exponent of the contexts' frequencies, so that rare ones count less (Levy et al. 2015, section 3.2)
STD = 0.05  # standard deviation of the elements
LEAST = 0.01  # nats; less is rounding, for a token that does not occur or whose neighbours are as by chance


@torch.no_grad()
def set_similar_vectors(weights: Sequence[Tensor], information: Tensor, seed: int) -> None:
    """Set the vectors of embeddings (V, D) by their rows of the information (sum of V, C); empty rows change nothing.

    The result depends only on information and seed.
    """
    is_known = information.amax(1) > LEAST
    vectors = similar_vectors(information, weights[0].shape[1], seed)
    first = 0
    for weight in weights:
        own = slice(first, first := first + len(weight))
        weight[is_known[own]] = STD * vectors[own][is_known[own]].to(weight)


def similar_vectors(information: Tensor, width: int, seed: int) -> Tensor:
    """Vectors (V, D) of length sqrt(D) from the first singular vectors of the information (V, C), scaled by the square
    roots of the singular values. Tokens with similar rows have similar vectors.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        basis, strength, _ = torch.svd_lowrank(information, min(width, *information.shape))
        turn, _ = torch.linalg.qr(torch.randn(width, width))  # a rotation: otherwise the first elements are largest
    vectors = F.pad(basis * strength.sqrt(), (0, width - len(strength))) @ turn
    return F.normalize(vectors, dim=1) * math.sqrt(width)


def information_of_neighbors(ids: np.ndarray, vocab_size: int) -> Tensor:
    """max(0, log(P(a, c) / (P(a) P(c)))) in nats, (V, 2C), for a token a and its neighbour c before or after it.

    ids: the tokens of a text. c is one of the C most frequent tokens.
    """
    tokens = torch.from_numpy(ids)
    frequency = torch.bincount(tokens, minlength=vocab_size)
    C = min(CONTEXTS, vocab_size, MOST_COUNTS // (2 * vocab_size))
    column = torch.full((vocab_size,), C)  # the column of each context; the last column is for all other tokens
    column[frequency.argsort(descending=True, stable=True)[:C]] = torch.arange(C)
    sides = []
    for own, others in ((tokens[1:], tokens[:-1]), (tokens[:-1], tokens[1:])):
        counts = torch.bincount(own * (C + 1) + column[others], minlength=vocab_size * (C + 1))
        joint = counts.view(vocab_size, C + 1)[:, :C].float()
        alone = joint.sum(0) ** SMOOTHING
        by_chance = frequency[:, None] / len(tokens) * (alone * joint.sum() / alone.sum())
        sides.append(positive_log(joint.div_(by_chance)))
    return torch.cat(sides, 1)


def positive_log(ratio: Tensor) -> Tensor:
    """max(0, log(ratio)), in place; 0 for 0 / 0, when neither token occurs."""
    return ratio.log_().nan_to_num_(nan=0.0).clamp_(min=0.0)

"""One query, a mask, a sequence: what the slides compute of attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from foretell.insight import derive
from foretell.lessons.formal_algorithms.printed import ASSOCIATIONS, KEYS, QUERY
from foretell.model.mask import Mask
from foretell.textbook.attention import (
    associations,
    attention,
    bidirectional_mask,
    single_query_attention,
    unidirectional_mask,
)
from foretell.textbook.parameters import AttentionParameters
from foretell.textbook.vectors import BooleanMask, Matrix, Vector, masked_softmax, softmax

LENGTH = len(ASSOCIATIONS)


@dataclass(frozen=True)
class AttentionFacts:
    """Attention on the slides' numbers, by the textbook and by the model's own parts."""

    dot_products: Vector
    unscaled: Vector  # their softmax
    scaled: Vector  # the softmax of them divided by √2
    weak: Vector  # the unscaled softmax, of a query a tenth as long
    weak_scaled: Vector
    mixture: Vector  # what that one takes by single-query attention, the keys being the values too
    mask: Matrix  # the textbook's, one row a query
    model_mask: Matrix
    masked: Matrix  # the associations under it
    weights: Matrix
    model_weights: Matrix
    open_moves: list[bool]  # unmasked: which positions' outputs move when the last word is exchanged?
    masked_moves: list[bool]


def attention_facts() -> AttentionFacts:
    """All of it."""
    query, keys = np.array(QUERY), np.array(KEYS)
    raw = np.array(ASSOCIATIONS, dtype=float)
    columns = unidirectional_mask(LENGTH)  # the textbook has one column a query, the slides one row
    model_mask = Mask(LENGTH, LENGTH)
    masked = derive.hide(torch.from_numpy(raw), model_mask)[0, 0]
    products = associations(query, keys.T)
    return AttentionFacts(
        products,
        softmax(products),
        softmax(products / np.sqrt(len(query))),
        softmax(products / 10),
        softmax(products / 10 / np.sqrt(len(query))),
        single_query_attention(query / 10, list(keys), identity(len(query))),
        columns.T.astype(int),
        model_mask.allowed[0, 0].numpy().astype(int),
        masked.numpy(),
        masked_softmax(raw.T, columns).T,
        derive.normalize(masked).numpy(),
        who_moves(bidirectional_mask(LENGTH, LENGTH)),
        who_moves(columns),
    )


def identity(width: int) -> AttentionParameters:
    """Queries, keys and values are the vectors themselves."""
    one, zero = np.eye(width), np.zeros(width)
    return AttentionParameters(one, zero, one, zero, one, zero)


def who_moves(mask: BooleanMask) -> list[bool]:
    """Which columns of attention's output move when the last vector is another one?"""
    X = np.random.default_rng(0).normal(size=(2, LENGTH))
    other = np.concatenate([X[:, :-1], -X[:, -1:]], axis=1)
    before, after = (attention(Z, Z, identity(2), mask) for Z in (X, other))
    return (before != after).any(axis=0).tolist()

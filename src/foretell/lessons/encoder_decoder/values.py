"""What follows from the printed scores, and encoder-decoder attention by the textbook on numbers of our own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from foretell.lessons.encoder_decoder.printed import CROSS, HEAD_WIDTH, SCALED, SOURCE, TARGET
from foretell.textbook.attention import (
    attention,
    attention_weights,
    bidirectional_mask,
    cross_attention,
    mh_attention,
    unidirectional_mask,
)
from foretell.textbook.embedding import embed, sinusoidal_encoding
from foretell.textbook.parameters import AttentionParameters, MultiHeadParameters
from foretell.textbook.vectors import Matrix, masked_softmax, relu, softmax_per_column

WIDTH, HEADS, HEAD, SEED = 4, 2, 2, 1
X_LENGTH, Z_LENGTH = len(TARGET), len(SOURCE)


@dataclass(frozen=True)
class Layer:
    """One decoder layer's values on random weights, in the textbook's convention: one column a token."""

    embedded: Matrix  # (width, 4)
    heads: list[Matrix]  # Z1 ... Zh, (head width, 4) each
    output_weight: Matrix  # W0
    M: Matrix  # (width, 4), what masked attention hands on
    R: Matrix  # (width, 3), the encoder's output
    cross_weights: Matrix  # (4, 3) of the first head, one row a word of the decoder
    cross: Matrix  # (width, 4)
    fed: Matrix  # (width, 4)


@dataclass(frozen=True)
class Everything:
    """All that the lesson shows and checks."""

    masked: list[Matrix]  # the scores, with one row more hidden each time
    weights: Matrix  # their softmax, one row a word
    dot_products: Matrix  # the scaled scores times √d: whole numbers
    exact: Matrix  # those divided by √d again
    cross_weights: Matrix  # the softmax of the printed product, scaled
    layer: Layer
    moved_by_source: list[float]  # how far each word of the decoder moves when the last source word is exchanged
    moved_by_target: list[float]  # how far each word moves in masked attention when the last target word is


def compute(scaled: list[list[float]] = SCALED) -> Everything:
    """All of it."""
    scores = np.array(scaled)
    root = math.sqrt(HEAD_WIDTH)
    whole = np.round(scores * root)
    mask = unidirectional_mask(X_LENGTH)  # (l_z, l_x): columns are queries
    numbers = draw_numbers()
    layer = run_layer(numbers)
    other_target = run_layer(replace(numbers, words=other_last(numbers.words)))
    other_source = run_layer(replace(numbers, R=other_last(numbers.R)))
    return Everything(
        [hide_rows(scores, rows) for rows in range(X_LENGTH)],
        masked_softmax(scores.T, mask).T,
        whole,
        whole / root,
        softmax_per_column(np.array(CROSS).T / root).T,
        layer,
        moves(layer.cross, other_source.cross),
        moves(layer.M, other_target.M),
    )


def hide_rows(scores: Matrix, rows: int) -> Matrix:
    """The scores with what is to the right of each of the first rows' words hidden."""
    future = np.triu(np.ones(scores.shape, dtype=bool), k=1)
    future[rows:] = False
    return np.where(future, -np.inf, scores)


@dataclass(frozen=True)
class Numbers:
    """Random numbers to run a layer on: the embedded words, the encoder's output, the weights."""

    words: Matrix  # (width, 4)
    R: Matrix  # (width, 3)
    own: MultiHeadParameters
    across: MultiHeadParameters
    W_1: Matrix
    W_2: Matrix


def draw_numbers(seed: int = SEED) -> Numbers:
    rng = np.random.default_rng(seed)
    return Numbers(
        rng.normal(size=(WIDTH, X_LENGTH)),
        rng.normal(size=(WIDTH, Z_LENGTH)),
        draw_heads(rng),
        draw_heads(rng),
        rng.normal(size=(2 * WIDTH, WIDTH)),
        rng.normal(size=(WIDTH, 2 * WIDTH)),
    )


def draw_heads(rng: np.random.Generator) -> MultiHeadParameters:
    zero = np.zeros(HEAD)

    def matrix() -> Matrix:
        return rng.normal(size=(HEAD, WIDTH))

    heads = tuple(AttentionParameters(matrix(), zero, matrix(), zero, matrix(), zero) for _ in range(HEADS))
    return MultiHeadParameters(heads, rng.normal(size=(WIDTH, HEADS * HEAD)), np.zeros(WIDTH))


def run_layer(numbers: Numbers) -> Layer:
    """Embedding, positions, masked attention, encoder-decoder attention, feed-forward; each with its residual.

    Vaswani et al. 2017, section 3.1; the norms are left out, to keep the numbers in sight.
    """
    positions = np.stack([sinusoidal_encoding(t, WIDTH) for t in range(X_LENGTH)], axis=1)
    X, mask = embed(range(X_LENGTH), numbers.words, positions), unidirectional_mask(X_LENGTH)
    M = mh_attention(X, X, numbers.own, mask)
    X_1 = X + M
    crossed = cross_attention(X_1, numbers.R, numbers.across)
    X_2 = X_1 + crossed
    everything = bidirectional_mask(Z_LENGTH, X_LENGTH)
    return Layer(
        X,
        [attention(X, X, head, mask) for head in numbers.own.heads],
        numbers.own.W_o,
        M,
        numbers.R,
        attention_weights(X_1, numbers.R, numbers.across.heads[0], everything).T,
        crossed,
        X_2 + numbers.W_2 @ relu(numbers.W_1 @ X_2),
    )


def moves(before: Matrix, after: Matrix) -> list[float]:
    """How far each word's vector moved, at most."""
    return np.abs(before - after).max(axis=0).tolist()


def other_last(columns: Matrix) -> Matrix:
    """The same with another last word."""
    return np.concatenate([columns[:, :-1], 1 - columns[:, -1:]], axis=1)

"""The decoder of an encoder-decoder: what follows from the printed scores, and one layer on random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

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

# Printed in the source. Most of its tables have dots instead of numbers; these are the complete ones
SOURCE_WORDS = ("I", "am", "good")
TARGET_WORDS = ("<sos>", "Je", "vais", "bien")
SCALED_SCORES = [  # Q Kᵀ / √d of the target's words; 12.37, 10.37, 1.37, 1.87 and 3.12 are truncated after two digits
    [9.125, 7.5, 1.25, 5.625],
    [5.0, 12.37, 3.12, 8.75],
    [7.25, 5.0, 10.37, 1.25],
    [1.5, 1.37, 1.87, 10.0],
]
CROSS_SCORES = [[91, 60, 77], [96, 63, 12], [41, 111, 48], [36, 45, 65]]  # Q Kᵀ of target words and source words

SOURCE_HEAD_WIDTH = 64  # not printed; the scores fit it, and Vaswani et al. 2017 use it
WIDTH, NUM_HEADS, HEAD_WIDTH, SEED = 4, 2, 2, 1
X_LENGTH, Z_LENGTH = len(TARGET_WORDS), len(SOURCE_WORDS)


@dataclass(frozen=True)
class LayerValues:
    """One decoder layer on random weights, in the textbook's convention: one column per token."""

    embedded: Matrix  # (width, 4)
    heads: list[Matrix]  # Z1 ... Zh, (head width, 4) each
    output_weight: Matrix  # W0
    M: Matrix  # (width, 4), the output of masked attention
    R: Matrix  # (width, 3), the encoder's output
    cross_weights: Matrix  # (4, 3) of the first head, one row per target word
    cross: Matrix  # (width, 4)
    output: Matrix  # (width, 4), after the feed-forward layer


@dataclass(frozen=True)
class TranslationValues:
    """Every value that the lesson shows and checks."""

    masked: list[Matrix]  # the scores with the masks of 0, 1, 2 and 3 rows
    weights: Matrix  # their softmax, one row per word
    dot_products: Matrix  # the scaled scores times √d: whole numbers
    exact_scores: Matrix  # those divided by √d again
    cross_weights: Matrix  # the softmax of the printed cross scores, scaled
    layer: LayerValues
    source_changes: list[float]  # change of each target word's cross-attention when the last source word is replaced
    target_changes: list[float]  # change of each word's masked attention when the last target word is replaced


def compute_translation(scaled_scores: list[list[float]] = SCALED_SCORES) -> TranslationValues:
    """All values of the lesson."""
    scores = np.array(scaled_scores)
    root = math.sqrt(SOURCE_HEAD_WIDTH)
    whole = np.round(scores * root)
    mask = unidirectional_mask(X_LENGTH)  # (l_z, l_x): columns are queries
    inputs = draw_inputs()
    layer = run_layer(inputs)
    other_target = run_layer(replace(inputs, words=replace_last(inputs.words)))
    other_source = run_layer(replace(inputs, R=replace_last(inputs.R)))
    return TranslationValues(
        [mask_rows(scores, count) for count in range(X_LENGTH)],
        masked_softmax(scores.T, mask).T,
        whole,
        whole / root,
        softmax_per_column(np.array(CROSS_SCORES).T / root).T,
        layer,
        column_changes(layer.cross, other_source.cross),
        column_changes(layer.M, other_target.M),
    )


def mask_rows(scores: Matrix, count: int) -> Matrix:
    """The scores with the entries right of the diagonal masked in the first `count` rows."""
    future = np.triu(np.ones(scores.shape, dtype=bool), k=1)
    future[count:] = False
    return np.where(future, -np.inf, scores)


@dataclass(frozen=True)
class LayerInputs:
    """Random inputs and weights of a layer."""

    words: Matrix  # (width, 4), the embedded target words
    R: Matrix  # (width, 3), the encoder's output
    self_attention: MultiHeadParameters
    cross_attention: MultiHeadParameters
    W_1: Matrix
    W_2: Matrix


def draw_inputs(seed: int = SEED) -> LayerInputs:
    """Normal random numbers, the same for one seed."""
    rng = np.random.default_rng(seed)
    return LayerInputs(
        rng.normal(size=(WIDTH, X_LENGTH)),
        rng.normal(size=(WIDTH, Z_LENGTH)),
        draw_heads(rng),
        draw_heads(rng),
        rng.normal(size=(2 * WIDTH, WIDTH)),
        rng.normal(size=(WIDTH, 2 * WIDTH)),
    )


def draw_heads(rng: np.random.Generator) -> MultiHeadParameters:
    zero = np.zeros(HEAD_WIDTH)

    def matrix() -> Matrix:
        return rng.normal(size=(HEAD_WIDTH, WIDTH))

    heads = tuple(AttentionParameters(matrix(), zero, matrix(), zero, matrix(), zero) for _ in range(NUM_HEADS))
    return MultiHeadParameters(heads, rng.normal(size=(WIDTH, NUM_HEADS * HEAD_WIDTH)), np.zeros(WIDTH))


def run_layer(inputs: LayerInputs) -> LayerValues:
    """Embedding, positions, masked attention, encoder-decoder attention and feed-forward, each with its residual.

    Vaswani et al. 2017, section 3.1. The norms are left out, which keeps the numbers readable.
    """
    positions = np.stack([sinusoidal_encoding(t, WIDTH) for t in range(X_LENGTH)], axis=1)
    X, mask = embed(range(X_LENGTH), inputs.words, positions), unidirectional_mask(X_LENGTH)
    M = mh_attention(X, X, inputs.self_attention, mask)
    X_1 = X + M
    crossed = cross_attention(X_1, inputs.R, inputs.cross_attention)
    X_2 = X_1 + crossed
    no_mask = bidirectional_mask(Z_LENGTH, X_LENGTH)
    return LayerValues(
        X,
        [attention(X, X, head, mask) for head in inputs.self_attention.heads],
        inputs.self_attention.W_o,
        M,
        inputs.R,
        attention_weights(X_1, inputs.R, inputs.cross_attention.heads[0], no_mask).T,
        crossed,
        X_2 + inputs.W_2 @ relu(inputs.W_1 @ X_2),
    )


def column_changes(before: Matrix, after: Matrix) -> list[float]:
    """The largest change in each column."""
    return np.abs(before - after).max(axis=0).tolist()


def replace_last(columns: Matrix) -> Matrix:
    """The same columns with another last one."""
    return np.concatenate([columns[:, :-1], 1 - columns[:, -1:]], axis=1)

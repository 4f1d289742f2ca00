"""The decoder of an encoder-decoder: what follows from the printed scores, and one layer on random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from foretell.textbook.attention import (
    attention,
    attention_weights,
    bidirectional_mask,
    cross_attention,
    mh_attention,
    project,
    unidirectional_mask,
)
from foretell.textbook.embedding import embed, sinusoidal_encoding
from foretell.textbook.encoder_decoder import decoder_layer_states
from foretell.textbook.parameters import AttentionParameters, CrossLayerParameters, MultiHeadParameters
from foretell.textbook.vectors import EPSILON, Matrix, masked_softmax, softmax_per_column

# Printed in the source. Most of its tables have dots instead of numbers; these are the complete ones
SENTENCE = "I am good"
SOURCE_WORDS = ("I", "am", "good")
TARGET_WORDS = ("<sos>", "Je", "vais", "bien")
SCALED_SCORES = [  # Q Kᵀ / √d of the target's words; 12.37, 10.37, 1.37, 1.87 and 3.12 are truncated after two digits
    [9.125, 7.5, 1.25, 5.625],
    [5.0, 12.37, 3.12, 8.75],
    [7.25, 5.0, 10.37, 1.25],
    [1.5, 1.37, 1.87, 10.0],
]
CROSS_SCORES = [[91, 60, 77], [96, 63, 12], [41, 111, 48], [36, 45, 65]]  # Q Kᵀ of target words and source words

INPUT = [  # X: an embedding with its position, a row for each target word
    ["7.9", "3.5", "…", "16.1"],
    ["8.1", "4.4", "…", "83.1"],
    ["17", "0.54", "…", "6.12"],
    ["11.12", "11.12", "…", "22.1"],
]
QUERIES = [  # Q = M W_Q of the encoder-decoder attention
    ["4.11", "6.31", "…", "8.12"],
    ["11.13", "7.11", "…", "7.35"],
    ["0.65", "10.10", "…", "80.75"],
    ["11.16", "11.11", "…", "4.44"],
]
TRANSPOSED_KEYS = [  # (R W_K)ᵀ, a column for each source word; the first number of the second row is printed twice
    ["11.71", "3.78", "6.35"],
    ["18.71", "12.12", "7.11"],
    ["⋮", "⋮", "⋮"],
    ["0.96", "3.69", "8.88"],
]
OTHER_KEY = "16.71"  # the same number in the source's next figure

SOURCE_HEAD_WIDTH = 64  # an assumption: it is not printed, but the scores fit it, and Vaswani et al. 2017 use it
WIDTH, NUM_HEADS, HEAD_WIDTH, SEED = 4, 2, 2, 1
X_LENGTH, Z_LENGTH = len(TARGET_WORDS), len(SOURCE_WORDS)


@dataclass(frozen=True)
class LayerValues:
    """One decoder layer on random weights, in the textbook's convention: one column per token."""

    embedded: Matrix  # X (width, 4)
    heads: list[Matrix]  # Z1 ... Zh, (head width, 4) each
    output_weight: Matrix  # W0
    M: Matrix  # (width, 4), the output of masked attention
    R: Matrix  # (width, 3), the encoder's output
    query: Matrix  # W_Q M of the first head, (head width, 4)
    key: Matrix  # W_K R of the first head, (head width, 3)
    cross_weights: Matrix  # (4, 3) of the first head, one row per target word
    cross: Matrix  # (width, 4)
    states: list[Matrix]  # what the stream is after each of the layer's six steps, residuals and norms included
    torch_output: Matrix  # (width, 4), of torch's own layer


@dataclass(frozen=True)
class LiveTranslation:
    """What a trained model made of a sentence: each step's words so far, and the token that it added."""

    model: str
    sentence: str
    steps: list[tuple[str, str]]
    translation: str


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
    layer: CrossLayerParameters


def draw_inputs(seed: int = SEED) -> LayerInputs:
    """Normal random numbers, the same for one seed; plain norms."""
    rng = np.random.default_rng(seed)
    words, R = rng.normal(size=(WIDTH, X_LENGTH)), rng.normal(size=(WIDTH, Z_LENGTH))
    one, zero = np.ones(WIDTH), np.zeros(WIDTH)
    attention, cross = draw_heads(rng), draw_heads(rng)
    W_1, W_2 = rng.normal(size=(2 * WIDTH, WIDTH)), rng.normal(size=(WIDTH, 2 * WIDTH))
    layer = CrossLayerParameters(attention, one, zero, cross, one, zero, W_1, np.zeros(2 * WIDTH), W_2, zero, one, zero)
    return LayerInputs(words, R, layer)


def draw_heads(rng: np.random.Generator) -> MultiHeadParameters:
    zero = np.zeros(HEAD_WIDTH)

    def matrix() -> Matrix:
        return rng.normal(size=(HEAD_WIDTH, WIDTH))

    heads = tuple(AttentionParameters(matrix(), zero, matrix(), zero, matrix(), zero) for _ in range(NUM_HEADS))
    return MultiHeadParameters(heads, rng.normal(size=(WIDTH, NUM_HEADS * HEAD_WIDTH)), np.zeros(WIDTH))


def run_layer(inputs: LayerInputs) -> LayerValues:
    """Embedding, positions and the two attentions as the source has them, and the whole layer as it was trained.

    The source's queries are of M, the output of masked attention. In the layer of Vaswani et al. 2017 (section 3.1)
    every step has a residual and a norm, so there they are of LayerNorm(X + M).
    """
    positions = np.stack([sinusoidal_encoding(t, WIDTH) for t in range(X_LENGTH)], axis=1)
    X, mask = embed(range(X_LENGTH), inputs.words, positions), unidirectional_mask(X_LENGTH)
    layer, first = inputs.layer, inputs.layer.cross_attention.heads[0]
    M = mh_attention(X, X, layer.attention, mask)
    no_mask = bidirectional_mask(Z_LENGTH, X_LENGTH)
    return LayerValues(
        X,
        [attention(X, X, head, mask) for head in layer.attention.heads],
        layer.attention.W_o,
        M,
        inputs.R,
        project(first.W_q, first.b_q, M),
        project(first.W_k, first.b_k, inputs.R),
        attention_weights(M, inputs.R, first, no_mask).T,
        cross_attention(M, inputs.R, layer.cross_attention),
        decoder_layer_states(X, inputs.R, layer),
        torch_layer(X, inputs.R, layer),
    )


@torch.inference_mode()
def torch_layer(X: Matrix, R: Matrix, layer: CrossLayerParameters) -> Matrix:
    """The output (width, 4) of `torch.nn.TransformerDecoderLayer` with the same weights."""
    module = nn.TransformerDecoderLayer(
        WIDTH, NUM_HEADS, 2 * WIDTH, 0.0, layer_norm_eps=EPSILON, batch_first=True, dtype=torch.float64
    )
    attentions = {"self_attn": layer.attention, "multihead_attn": layer.cross_attention}
    state = {f"{path}.{name}": value for path, W in attentions.items() for name, value in torch_attention(W).items()}
    state |= {"linear1.weight": layer.W_mlp3, "linear2.weight": layer.W_mlp4}
    module.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=False)
    zeroed = [parameter.zero_() for name, parameter in module.named_parameters() if name.endswith("bias")]
    assert len(zeroed) == 2 * len(attentions) + 2 + 3
    mask = nn.Transformer.generate_square_subsequent_mask(X_LENGTH, dtype=torch.float64)
    target, memory = torch.from_numpy(X.T)[None], torch.from_numpy(R.T)[None]
    return module.eval()(target, memory, tgt_mask=mask)[0].numpy().T


def torch_attention(W: MultiHeadParameters) -> dict[str, Matrix]:
    """The weights of `torch.nn.MultiheadAttention`: queries, keys and values of all heads in one matrix."""
    packed = [getattr(head, symbol) for symbol in ("W_q", "W_k", "W_v") for head in W.heads]
    return {"in_proj_weight": np.concatenate(packed), "out_proj.weight": W.W_o}


def column_changes(before: Matrix, after: Matrix) -> list[float]:
    """The largest change in each column."""
    return np.abs(before - after).max(axis=0).tolist()


def replace_last(columns: Matrix) -> Matrix:
    """The same columns with another last one."""
    return np.concatenate([columns[:, :-1], 1 - columns[:, -1:]], axis=1)

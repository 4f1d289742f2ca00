"""The decoder of an encoder-decoder: checks of the printed scores, and one layer on random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from foretell.lessons.exercise import Exercise
from foretell.lessons.lesson import FigureCheck, Lesson, above, near, same
from foretell.numerics.activations import relu
from foretell.numerics.norms import EPSILON
from foretell.textbook.attention import (
    AttentionParameters,
    MultiHeadParameters,
    attention,
    attention_weights,
    bidirectional_mask,
    cross_attention,
    masked_softmax,
    mh_attention,
    project,
    softmax_per_column,
    unidirectional_mask,
)
from foretell.textbook.transformer import (
    CrossLayerParameters,
    LayerParameters,
    decoder_layer_states,
    embed,
    encoder_layer_states,
    sinusoidal_encoding,
)
from foretell.typesetting.expression import Matrix, SymbolMatrix, row, script

# Printed in the source. Most of its tables are abridged by dots; these are complete
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
TRUNCATED = 0.01  # the source truncates after the second digit
SAME = 1e-12
TORCH_OPTIONS: dict[str, Any] = {"layer_norm_eps": EPSILON, "batch_first": True, "dtype": torch.float64}
LAYER_BOUND = 1e-10
PRINTED_TABLES = (INPUT, QUERIES, TRANSPOSED_KEYS)


@dataclass(frozen=True)
class LiveTranslation:
    """A sentence translated by a trained model: each step's words so far, and the token that it added."""

    model: str
    sentence: str
    steps: list[tuple[str, str]]
    translation: str


class TranslationLesson(Lesson):
    """Masked attention within the target, then attention to the source sentence."""

    name = "translation"

    def __init__(self, live: LiveTranslation | None = None, scaled_scores: list[list[float]] = SCALED_SCORES):
        self.live = live
        scores, root = np.array(scaled_scores), math.sqrt(SOURCE_HEAD_WIDTH)
        mask = unidirectional_mask(X_LENGTH)  # (l_z, l_x): columns are queries
        self.masked = [mask_rows(scores, count) for count in range(X_LENGTH)]  # with the masks of 0, 1, 2 and 3 rows
        self.weights = masked_softmax(scores.T, mask).T  # one row per word
        self.dot_products = np.round(scores * root)  # whole numbers
        self.exact_scores = self.dot_products / root
        self.cross_weights = softmax_per_column(np.array(CROSS_SCORES).T / root).T
        inputs = draw_inputs()
        self.layer = LayerValues(inputs)
        # The largest change of each word's cross-attention, and of its masked attention, when the last word is replaced
        other_source = LayerValues(replace(inputs, source=replace_last(inputs.source)))
        other_target = LayerValues(replace(inputs, words=replace_last(inputs.words)))
        self.source_changes = column_changes(self.layer.cross, other_source.cross)
        self.target_changes = column_changes(self.layer.M, other_target.M)

    def shown(self) -> dict[str, Any]:
        layer, live = self.layer, self.live or LiveTranslation("", "", [], "")
        return {
            "input": SymbolMatrix(INPUT, TARGET_WORDS),
            **{f"masked_{count}": as_printed(scores) for count, scores in enumerate(self.masked)},
            "dot_products": ", ".join(f"{value:.0f}" for value in self.dot_products[0]),
            "head_width": SOURCE_HEAD_WIDTH,
            "weights": Matrix(self.weights, row_labels=TARGET_WORDS),
            "encoder_input": Matrix(layer.encoder_input.T, 2, SOURCE_WORDS),
            "encoder_head_width": HEAD_WIDTH,
            "encoder_weights": Matrix(layer.encoder_weights, row_labels=SOURCE_WORDS),
            "encoder_output": Matrix(layer.R.T, row_labels=SOURCE_WORDS),
            "heads": Matrix(np.concatenate(layer.heads).T, 2),
            "W_0": Matrix(layer.output_weight.T, 2),
            "M": Matrix(layer.M.T, 2, TARGET_WORDS),
            "queries": SymbolMatrix(QUERIES, TARGET_WORDS),
            "transposed_keys": SymbolMatrix(TRANSPOSED_KEYS),
            "printed_key": TRANSPOSED_KEYS[1][0],
            "other_key": OTHER_KEY,
            "products": SymbolMatrix(
                [[row(script("q", str(i)), script("k", str(j))) for j in (1, 2, 3)] for i in (1, 2, 3, 4)], TARGET_WORDS
            ),
            "cross_scores": Matrix(CROSS_SCORES, row_labels=TARGET_WORDS),
            "cross_weights": Matrix(self.cross_weights, row_labels=TARGET_WORDS),
            "layer_queries": Matrix(layer.query.T, 2),
            "layer_keys": Matrix(layer.key, 2),
            "layer_scores": Matrix(layer.query.T @ layer.key, 2, TARGET_WORDS),
            "replaced": [
                ("bien, in masked attention", *(f"{change:.2f}" for change in self.target_changes)),
                ("good, in cross-attention", *(f"{change:.2f}" for change in self.source_changes)),
            ],
            "embedded_size": size(layer.embedded),
            **{f"size_{index}": size(state) for index, state in enumerate(layer.states, start=1)},
            "layer_output": Matrix(layer.states[-1].T, row_labels=TARGET_WORDS),
            "model": live.model,
            "sentence": live.sentence,
            "live_steps": live.steps,
            "translation": live.translation,
        }

    def checks(self) -> list[FigureCheck]:
        return [*self.check_scores(), *self.check_masks(), *self.check_cross_attention(), *check_layer(self.layer)]

    def solutions(self) -> list[Exercise]:
        scores = SCALED_SCORES[0]
        unmasked = np.exp(scores) / np.exp(scores).sum()
        exponentials = " + ".join(f"exp({score})" for score in scores)
        return [
            Exercise(
                int(self.dot_products[2, 1]), f"{SCALED_SCORES[2][1]} · {math.isqrt(SOURCE_HEAD_WIDTH)}", "section 2"
            ),
            Exercise(float(unmasked[0]), f"exp({scores[0]}) / ({exponentials})", "the first row of section 2"),
            Exercise.largest(SOURCE_WORDS, self.cross_weights[-1].tolist(), "the last row of the softmax"),
        ]

    def check_scores(self) -> list[FigureCheck]:
        """The printed scores are whole numbers divided by 8: the head's width is 64."""
        what = f"scaled scores are whole numbers over √{SOURCE_HEAD_WIDTH}"
        narrower = np.round(np.array(SCALED_SCORES) * 4) / 4
        return [
            near(what, SCALED_SCORES, self.exact_scores, TRUNCATED),
            above("and not over √16: the largest difference", 10 * TRUNCATED, np.abs(narrower - SCALED_SCORES).max()),
        ]

    def check_masks(self) -> list[FigureCheck]:
        """Each step masks one more row; the softmax of each row is a distribution."""
        masked = [int(np.isinf(scores).sum()) for scores in self.masked]
        upper = np.triu(np.ones((len(TARGET_WORDS), len(TARGET_WORDS))), k=1)
        return [
            same("the mask grows row by row: masked scores", [0, 3, 5, 6], masked),
            same("in the last step, all above the diagonal is masked", upper, np.isinf(self.masked[-1]).astype(float)),
            near("each row of the softmax sums to 1", np.ones(len(TARGET_WORDS)), self.weights.sum(1), SAME),
            same("later words have weight 0", np.zeros((4, 4)), self.weights * upper),
            same(
                "masked attention: words that change with the last one",
                [False, False, False, True],
                changed(self.target_changes),
            ),
        ]

    def check_cross_attention(self) -> list[FigureCheck]:
        """Every target word sees every source word."""
        shape = [len(TARGET_WORDS), len(SOURCE_WORDS)]
        return [
            same("shape of the printed product", shape, list(np.shape(CROSS_SCORES))),
            same("shape of Q Kᵀ by the textbook", shape, list(self.layer.cross_weights.shape)),
            near("each row of the cross-attention weights sums to 1", np.ones(4), self.cross_weights.sum(1), SAME),
            same("no mask: every weight is above 0", True, bool((self.layer.cross_weights > 0).all())),
            same("words that change with the last source word", [True] * 4, changed(self.source_changes)),
        ]


def check_layer(layer: LayerValues) -> list[FigureCheck]:
    """Heads are concatenated and projected; every step has one vector per target word."""
    weights = softmax_per_column(layer.key.T @ layer.query / math.sqrt(HEAD_WIDTH)).T  # (4, 3), of the first head
    return [
        near("M = Concat(Z1 .. Zh) W0", np.concatenate(layer.heads).T @ layer.output_weight.T, layer.M.T, SAME),
        near("softmax of M W_Q (R W_K)ᵀ / √2", layer.cross_weights, weights, SAME),
        same(
            "sizes of X, Q and Kᵀ as printed", [(4, 4), (4, 4), (4, 3)], [np.shape(table) for table in PRINTED_TABLES]
        ),
        near("the whole layer: the textbook's and torch's", layer.torch_output, layer.states[-1], LAYER_BOUND),
        near("the encoder's layer: the textbook's and torch's", layer.torch_encoded, layer.R, LAYER_BOUND),
        near("after its last norm each word has mean 0", np.zeros(4), layer.states[-1].mean(axis=0), SAME),
        *(
            same(f"words in {name}", len(TARGET_WORDS), value.shape[1])
            for name, value in (("the embedding", layer.embedded), ("M", layer.M), ("the output", layer.states[-1]))
        ),
        same("words in the encoder's output", len(SOURCE_WORDS), layer.R.shape[1]),
    ]


def changed(changes: list[float]) -> list[bool]:
    """For each word: did it change at all?"""
    return [change > 0 for change in changes]


def as_printed(scores: np.ndarray) -> SymbolMatrix:
    """Scores with the digits that the source prints, such as 12.37 and 5.0."""
    cells = [["-∞" if np.isinf(value) else str(float(value)) for value in line] for line in scores]
    return SymbolMatrix(cells, TARGET_WORDS)


def size(columns: np.ndarray) -> str:
    """The shape with the number of words first, as in the source."""
    return f"{columns.shape[1]} x {columns.shape[0]}"


def mask_rows(scores: np.ndarray, count: int) -> np.ndarray:
    """The scores with the entries right of the diagonal masked in the first `count` rows."""
    future = np.triu(np.ones(scores.shape, dtype=bool), k=1)
    future[count:] = False
    return np.where(future, -np.inf, scores)


@dataclass(frozen=True)
class LayerInputs:
    """Random inputs and weights of a layer."""

    words: np.ndarray  # (width, 4), the embedded target words
    source: np.ndarray  # (width, 3), the embedded source words
    layer: CrossLayerParameters
    encoder: LayerParameters


def draw_inputs() -> LayerInputs:
    """Normal random numbers, the same in each call; norms without scale and shift."""
    rng = np.random.default_rng(SEED)
    words, source = rng.normal(size=(WIDTH, X_LENGTH)), rng.normal(size=(WIDTH, Z_LENGTH))
    one, zero = np.ones(WIDTH), np.zeros(WIDTH)
    attention, cross = draw_heads(rng), draw_heads(rng)
    layer = CrossLayerParameters(attention, one, zero, cross, one, zero, *draw_mlp(rng), one, zero)
    encoder = LayerParameters(one, zero, draw_heads(rng), one, zero, *draw_mlp(rng))
    return LayerInputs(words, source, layer, encoder)


def draw_mlp(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The weights of a feed-forward layer, with biases of 0."""
    W_1, W_2 = rng.normal(size=(2 * WIDTH, WIDTH)), rng.normal(size=(WIDTH, 2 * WIDTH))
    return W_1, np.zeros(2 * WIDTH), W_2, np.zeros(WIDTH)


def draw_heads(rng: np.random.Generator) -> MultiHeadParameters:
    zero = np.zeros(HEAD_WIDTH)

    def matrix() -> np.ndarray:
        return rng.normal(size=(HEAD_WIDTH, WIDTH))

    heads = tuple(AttentionParameters(matrix(), zero, matrix(), zero, matrix(), zero) for _ in range(NUM_HEADS))
    return MultiHeadParameters(heads, rng.normal(size=(WIDTH, NUM_HEADS * HEAD_WIDTH)), np.zeros(WIDTH))


class LayerValues:
    """One decoder layer on random weights, in the textbook's convention: one column per token.

    Embedding, positions and the two attentions in the source's form, and the whole layer of Vaswani et al. 2017. The
    source computes queries from M, the output of masked attention. In the whole layer (section 3.1) every step has a
    residual and a norm, so its queries come from LayerNorm(X + M).
    """

    def __init__(self, inputs: LayerInputs):
        positions = np.stack([sinusoidal_encoding(t, WIDTH) for t in range(X_LENGTH)], axis=1)
        layer, encoder, mask = inputs.layer, inputs.encoder, unidirectional_mask(X_LENGTH)
        first, encoder_head = layer.cross_attention.heads[0], encoder.attention.heads[0]
        self.embedded = X = embed(range(X_LENGTH), inputs.words, positions)  # (width, 4)
        self.heads = [attention(X, X, head, mask) for head in layer.attention.heads]  # Z1 ... Zh, (head width, 4) each
        self.output_weight = layer.attention.W_o  # W0
        self.M = M = mh_attention(X, X, layer.attention, mask)  # (width, 4), the output of masked attention
        self.encoder_input = source = embed(range(Z_LENGTH), inputs.source, positions)  # (width, 3)
        no_mask = bidirectional_mask(Z_LENGTH, Z_LENGTH)
        self.encoder_weights = attention_weights(source, source, encoder_head, no_mask).T  # (3, 3), a row per word
        self.R = R = encoder_layer_states(source, encoder, relu)[-1]  # (width, 3), the encoder's output
        self.torch_encoded = torch_encoder_layer(source, encoder)  # the same from torch's own layer
        self.query = project(first.W_q, first.b_q, M)  # (head width, 4), of the first head
        self.key = project(first.W_k, first.b_k, R)  # (head width, 3)
        no_mask = bidirectional_mask(Z_LENGTH, X_LENGTH)
        self.cross_weights = attention_weights(M, R, first, no_mask).T  # (4, 3), one row per target word
        self.cross = cross_attention(M, R, layer.cross_attention)  # (width, 4)
        # The stream after each of the layer's six steps, residuals and norms included
        self.states = decoder_layer_states(X, R, layer)
        self.torch_output = torch_layer(X, R, layer)  # (width, 4), from torch's own layer


@torch.inference_mode()
def torch_layer(X: np.ndarray, R: np.ndarray, layer: CrossLayerParameters) -> np.ndarray:
    """The output (width, 4) of `torch.nn.TransformerDecoderLayer` with the same weights."""
    module = nn.TransformerDecoderLayer(WIDTH, NUM_HEADS, 2 * WIDTH, 0.0, **TORCH_OPTIONS)
    attentions = {"self_attn": layer.attention, "multihead_attn": layer.cross_attention}
    fill(module, attentions, layer.W_mlp3, layer.W_mlp4)
    mask = nn.Transformer.generate_square_subsequent_mask(X_LENGTH, dtype=torch.float64)
    target, memory = torch.from_numpy(X.T)[None], torch.from_numpy(R.T)[None]
    return module.eval()(target, memory, tgt_mask=mask)[0].numpy().T


@torch.inference_mode()
def torch_encoder_layer(X: np.ndarray, layer: LayerParameters) -> np.ndarray:
    """The output (width, 3) of `torch.nn.TransformerEncoderLayer` with the same weights."""
    module = nn.TransformerEncoderLayer(WIDTH, NUM_HEADS, 2 * WIDTH, 0.0, **TORCH_OPTIONS)
    fill(module, {"self_attn": layer.attention}, layer.W_mlp1, layer.W_mlp2)
    return module.eval()(torch.from_numpy(X.T)[None])[0].numpy().T


def fill(module: nn.Module, attentions: dict[str, MultiHeadParameters], W_1: np.ndarray, W_2: np.ndarray) -> None:
    """Load weights into one of torch's layers, with zero biases and norms without scale and shift."""
    state = {f"{path}.{name}": value for path, W in attentions.items() for name, value in torch_attention(W).items()}
    state |= {"linear1.weight": W_1, "linear2.weight": W_2}
    module.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=False)
    zeroed = [parameter.zero_() for name, parameter in module.named_parameters() if name.endswith("bias")]
    norms = len(attentions) + 1
    assert len(zeroed) == 2 * len(attentions) + 2 + norms


def torch_attention(W: MultiHeadParameters) -> dict[str, np.ndarray]:
    """The weights of `torch.nn.MultiheadAttention`: queries, keys and values of all heads in one matrix."""
    packed = [getattr(head, symbol) for symbol in ("W_q", "W_k", "W_v") for head in W.heads]
    return {"in_proj_weight": np.concatenate(packed), "out_proj.weight": W.W_o}


def column_changes(before: np.ndarray, after: np.ndarray) -> list[float]:
    return np.abs(before - after).max(axis=0).tolist()


def replace_last(columns: np.ndarray) -> np.ndarray:
    return np.concatenate([columns[:, :-1], 1 - columns[:, -1:]], axis=1)

"""The formal algorithms: the figures that the source prints, attention on its numbers, and the decoder in two forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from foretell.activations import gelu_erf
from foretell.config import ModelConfig, SamplingConfig, make_section
from foretell.generation.filters import Prefix
from foretell.generation.sampling import Sampler
from foretell.model.attention import hide
from foretell.model.decoder import Decoder
from foretell.model.mask import Mask
from foretell.textbook.attention import (
    associations,
    attention,
    bidirectional_mask,
    single_query_attention,
    unidirectional_mask,
)
from foretell.textbook.embedding import embed, unembedding_per_column
from foretell.textbook.encoder_decoder import encoder_layer_states
from foretell.textbook.inference import d_inference, tempered
from foretell.textbook.parameters import (
    AttentionParameters,
    DTransformerParameters,
    Hyperparameters,
    LayerParameters,
    combine,
    random_parameters,
)
from foretell.textbook.training import sgd_step
from foretell.textbook.transformer import (
    conditional_log_probability,
    d_transformer_gpt2,
    d_transformer_overwriting,
    masked_self_attention,
    mlp,
)
from foretell.textbook.vectors import (
    BooleanMask,
    Matrix,
    Vector,
    layer_norm_per_column,
    masked_softmax,
    softmax,
)

# Printed in the source
QUERY = [11.0, 12.0]
KEYS = [[1.0, 2.0], [4.0, 5.0], [7.0, 8.0]]
DOT_PRODUCTS = [35, 104, 173]
LAST_WEIGHT = 0.999  # the softmax's 0.999..., without scaling

ASSOCIATIONS = [[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34], [41, 42, 43, 44]]
MASK = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]  # mask[tx, tz] = 1 if tz <= tx

WORDS, IDS = ("The", "cat", "sat"), [21, 11987, 5438]
P_CAT = 0.0041  # P[1, 11987], given The
P_PRINTED = [  # three rows of P for the sentence, with dots between the second and the last column
    ["0.001", "0.0007", "…", "0.0003"],
    ["0.0013", "0.0065", "…", "0.0001"],
    ["0.079", "0.015", "…", "0.0001"],
]

GPT1 = {"num_layers": 12, "num_heads": 12, "width": 768, "norm_placement": "post"}
GPT2 = {"num_layers": 48, "width": 1600, "norm_placement": "pre"}
GPT2_PARAMETERS = 1.542e9  # the shape with biases and positions has 1.558e9; the paper does not say how it counted
CORPORA = (  # the first two as the lecture gives them; of GPT-3, Brown et al. 2020, section 2.2
    ("GPT-1", "BooksCorpus: 7,000 unpublished books"),
    ("GPT-2", "WebText: 8 million pages that Reddit links to with 3 karma or more"),
    ("GPT-3", "Common Crawl filtered, WebText2, two book corpora, Wikipedia"),
)
GPT3 = {"num_layers": 96, "width": 12288, "norm_placement": "pre"}

LENGTH = len(ASSOCIATIONS)
SIZES = Hyperparameters(N_V=5, l_max=8, L=2, H=2, d_e=4, d_mlp=8)
SEED = 3
x = [3, 0, 4, 1]
ETA, STEPS = 0.1, 40
TEMPERATURES = (0.5, 1.0, 2.0)
N_V = 12_000  # a vocabulary that contains the printed ids


@dataclass(frozen=True)
class AttentionValues:
    """Attention on the printed numbers, by the textbook and by the model's own parts."""

    dot_products: Vector
    unscaled: Vector  # their softmax
    weak: Vector  # the unscaled softmax for a tenth of the query
    weak_scaled: Vector  # the scaled softmax for it
    mixture: Vector  # its single-query attention, with the keys as values
    mask: Matrix  # the textbook's, one row per query
    model_mask: Matrix
    masked: Matrix  # the associations under the mask
    weights: Matrix
    model_weights: Matrix
    loop_weights: Matrix  # as the source's loop computes them, each divided by the sum up to itself
    unmasked_changes: list[bool]  # for each position: does its output change when the last word does?
    masked_changes: list[bool]


def compute_attention() -> AttentionValues:
    """All values of attention."""
    query, keys = np.array(QUERY), np.array(KEYS)
    raw = np.array(ASSOCIATIONS, dtype=float)
    columns = unidirectional_mask(LENGTH)  # the textbook has one column per query, the source one row
    model_mask = Mask(LENGTH, LENGTH)
    masked = hide(torch.from_numpy(raw), model_mask)[0, 0]
    dot_products = associations(query, keys.T)
    return AttentionValues(
        dot_products,
        softmax(dot_products),
        softmax(dot_products / 10),
        softmax(dot_products / 10 / np.sqrt(len(query))),
        single_query_attention(query / 10, list(keys), identity_parameters(len(query))),
        columns.T.astype(int),
        model_mask.allowed[0, 0].numpy().astype(int),
        masked.numpy(),
        masked_softmax(raw.T, columns).T,
        masked.softmax(dim=-1).numpy(),
        np.stack([loop_weights(raw[t], t + 1) for t in range(LENGTH)]),
        changed_outputs(bidirectional_mask(LENGTH, LENGTH)),
        changed_outputs(columns),
    )


def loop_weights(scores: Vector, visible: int) -> Vector:
    """The source's loop: exp(s_t) divided by the sum over u = 1 .. t for each visible t, and 0 for the others."""
    weights = np.zeros(len(scores))
    for t in range(visible):
        weights[t] = 1 / np.exp(scores[: t + 1] - scores[t]).sum()
    return weights


def identity_parameters(width: int) -> AttentionParameters:
    """Attention parameters with which queries, keys and values are the vectors themselves."""
    identity, zero = np.eye(width), np.zeros(width)
    return AttentionParameters(identity, zero, identity, zero, identity, zero)


def changed_outputs(mask: BooleanMask) -> list[bool]:
    """For each column of attention's output: does it change when the last vector does?"""
    X = np.random.default_rng(0).normal(size=(2, LENGTH))
    other = np.concatenate([X[:, :-1], -X[:, -1:]], axis=1)
    before, after = (attention(Z, Z, identity_parameters(2), mask) for Z in (X, other))
    return (before != after).any(axis=0).tolist()


@dataclass(frozen=True)
class DecoderValues:
    """The outputs of the decoder algorithms."""

    listing: Matrix  # P by the listing as printed, with the last norm in the loop over the layers; a row per position
    overwriting: Matrix  # P by the listing with the last norm after the loop
    residual: Matrix  # P with GPT-2's residual
    model: Matrix  # P by the model with the same weights
    loss_of_cat: float
    cross_entropy_of_cat: float  # with a one-hot target
    losses: list[float]  # of gradient descent
    tempered: list[Vector]
    sampler: list[Vector]  # the same by the sampling filters that generation uses
    generated: list[int]


def compute_decoder() -> DecoderValues:
    """All values of the decoder."""
    theta = draw_parameters()
    last = d_transformer_gpt2(x, theta)[:, -1]
    return DecoderValues(
        norm_in_loop(x, theta).T,
        d_transformer_overwriting(x, theta).T,
        d_transformer_gpt2(x, theta).T,
        model_probabilities(theta),
        loss_of_cat(),
        one_hot_cross_entropy(),
        descend(theta),
        [tempered(last, tau) for tau in TEMPERATURES],
        [sampler_probabilities(last, tau) for tau in TEMPERATURES],
        d_inference(x, partial(d_transformer_gpt2, theta=theta), 4, 1.0, np.random.default_rng(0)),
    )


def draw_parameters() -> DTransformerParameters:
    """Random parameters, varied so that no bias is 0 and no norm is plain, as in a trained model."""
    rng = np.random.default_rng(SEED)
    theta = random_parameters(SIZES, rng)
    return combine(lambda weight: weight + 0.3 * rng.normal(size=weight.shape), theta)


def norm_in_loop(x: Sequence[int], theta: DTransformerParameters) -> Matrix:
    """P (N_V, l) by the listing as the source prints it: it normalises a third time at the end of every layer."""
    X = embed(x, theta.W_e, theta.W_p)
    for layer in theta.layers:
        X = layer_norm_per_column(X, layer.gamma_1, layer.beta_1)
        X = X + masked_self_attention(X, layer)
        X = layer_norm_per_column(X, layer.gamma_2, layer.beta_2)
        X = X + mlp(X, layer)
        X = layer_norm_per_column(X, theta.gamma, theta.beta)
    return unembedding_per_column(X, theta.W_u)


def layer_means() -> dict[str, float]:
    """The largest mean of a token's vector after one layer, by BERT's layer (norm last) and by GPT's (norm first)."""
    theta = random_parameters(SIZES, np.random.default_rng(SEED))  # with plain norms
    layer, X = theta.layers[0], embed(x, theta.W_e, theta.W_p)
    bert = encoder_layer_states(X, layer, gelu_erf)[-1]
    attended = X + masked_self_attention(layer_norm_per_column(X, layer.gamma_1, layer.beta_1), layer)
    gpt = attended + mlp(layer_norm_per_column(attended, layer.gamma_2, layer.beta_2), layer)
    return {name: float(np.abs(Y.mean(axis=0)).max()) for name, Y in (("BERT", bert), ("GPT", gpt))}


@torch.inference_mode()
def model_probabilities(theta: DTransformerParameters) -> Matrix:
    """The model's P (T, V), with the textbook's weights."""
    decoder = Decoder(algorithms_config()).double()
    decoder.load_state_dict({path: torch.from_numpy(weight.copy()) for path, weight in model_weights(theta).items()})
    return decoder(torch.tensor([x]))[0].softmax(-1).numpy()


def algorithms_config() -> ModelConfig:
    """The listing's shape: pre-norm, exact GELU, untied unembedding."""
    return make_section(
        ModelConfig,
        {
            "num_layers": SIZES.L,
            "num_heads": SIZES.H,
            "width": SIZES.d_e,
            "feedforward_width": SIZES.d_mlp,
            "context_length": SIZES.l_max,
            "vocab_size": SIZES.N_V,
            "activation": "gelu_erf",
            "tie_embeddings": False,
        },
    )


def model_weights(theta: DTransformerParameters) -> dict[str, Matrix]:
    """The parameters theta by module path."""
    weights = {
        "embed.token.weight": theta.W_e.T,
        "embed.position.weight": theta.W_p.T,
        "trunk.norm.weight": theta.gamma,
        "trunk.norm.bias": theta.beta,
        "head.weight": theta.W_u,
    }
    for index, layer in enumerate(theta.layers):
        weights |= {f"trunk.blocks.{index}.{name}": weight for name, weight in layer_weights(layer).items()}
    return weights


def layer_weights(layer: LayerParameters) -> dict[str, Matrix]:
    """One layer's weights by path below the block, the rows of all heads stacked."""
    heads = layer.attention.heads
    projections = {"query": ("W_q", "b_q"), "key": ("W_k", "b_k"), "value": ("W_v", "b_v")}
    stacked = {
        f"attention.{name}.{kind}": np.concatenate([getattr(head, symbol) for head in heads])
        for name, symbols in projections.items()
        for kind, symbol in zip(("weight", "bias"), symbols, strict=True)
    }
    return stacked | {
        "attention.output.weight": layer.attention.W_o,
        "attention.output.bias": layer.attention.b_o,
        "attention_norm.weight": layer.gamma_1,
        "attention_norm.bias": layer.beta_1,
        "feedforward_norm.weight": layer.gamma_2,
        "feedforward_norm.bias": layer.beta_2,
        "feedforward.up.weight": layer.W_mlp1,
        "feedforward.up.bias": layer.b_mlp1,
        "feedforward.down.weight": layer.W_mlp2,
        "feedforward.down.bias": layer.b_mlp2,
    }


def probabilities_of_cat() -> Matrix:
    """P (N_V, 1) after The: the printed probability for cat, the rest spread evenly over the other tokens."""
    P = np.full((N_V, 1), (1 - P_CAT) / (N_V - 1))
    P[IDS[1]] = P_CAT
    return P


def loss_of_cat() -> float:
    """-log P[x[2], 1], the loss at t = 1."""
    return -conditional_log_probability(probabilities_of_cat(), IDS[:2])


def one_hot_cross_entropy() -> float:
    """-sum over k of y[k] log P[k, 1], where y is 1 for cat and 0 for all others."""
    y = np.zeros(N_V)
    y[IDS[1]] = 1
    return -float(y @ np.log(probabilities_of_cat()[:, 0]))


def descend(theta: DTransformerParameters) -> list[float]:
    """The loss before each step of gradient descent on one sequence."""
    losses = []
    for _ in range(STEPS):
        loss, theta = sgd_step(x, theta, ETA)
        losses.append(loss)
    return losses


def sampler_probabilities(p: Vector, temperature: float) -> Vector:
    """The distribution that generation draws from at this temperature."""
    logits = torch.from_numpy(np.log(p))[None]
    for apply in Sampler(make_section(SamplingConfig, {"temperature": temperature, "top_p": 1.0})).filters.values():
        logits = apply(logits, [Prefix([])])
    return logits.softmax(-1)[0].numpy()

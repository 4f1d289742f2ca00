"""The transformer: parameters, embedding, layers, the decoder in two forms, inference (Phuong and Hutter 2022).

Algorithms 1, 2, 7, 10 and 14, and the layers of Algorithms 8 and 9. Parameters have the paper's symbols; gradients
use the classes of the parameters. Both forms of the decoder normalise before attention and before the MLP, and differ
in the value to which the residual is added. The layers of encoder and encoder-decoder normalise after each residual.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from foretell.errors import ContextLengthError, UsageError
from foretell.numerics.activations import gelu_erf, relu
from foretell.textbook.attention import (
    AttentionParameters,
    Matrix,
    MultiHeadParameters,
    Vector,
    bidirectional_mask,
    cross_attention,
    layer_norm_per_column,
    mh_attention,
    project,
    softmax,
    unidirectional_mask,
)

AnyParameters = TypeVar("AnyParameters")


@dataclass(frozen=True)
class LayerParameters:
    """One layer of Algorithms 9 and 10, and of Algorithm 8's encoder: two norms (d_e,), attention and an MLP.

    W_mlp1 (d_mlp, d_e), W_mlp2 (d_e, d_mlp).
    """

    gamma_1: Vector
    beta_1: Vector
    attention: MultiHeadParameters
    gamma_2: Vector
    beta_2: Vector
    W_mlp1: Matrix
    b_mlp1: Vector
    W_mlp2: Matrix
    b_mlp2: Vector


@dataclass(frozen=True)
class DTransformerParameters:
    """Parameters of Algorithm 10: W_e (d_e, N_V), W_p (d_e, l_max), L layers, a last norm (d_e,), W_u (N_V, d_e)."""

    W_e: Matrix
    W_p: Matrix
    layers: tuple[LayerParameters, ...]
    gamma: Vector
    beta: Vector
    W_u: Matrix


@dataclass(frozen=True)
class CrossLayerParameters:
    """One decoder layer of Algorithm 8: three norms (d_e,), masked attention, cross-attention, and an MLP.

    W_mlp3 (d_mlp, d_e), W_mlp4 (d_e, d_mlp).
    """

    attention: MultiHeadParameters
    gamma_3: Vector
    beta_3: Vector
    cross_attention: MultiHeadParameters
    gamma_4: Vector
    beta_4: Vector
    W_mlp3: Matrix
    b_mlp3: Vector
    W_mlp4: Matrix
    b_mlp4: Vector
    gamma_5: Vector
    beta_5: Vector


@dataclass(frozen=True)
class ETransformerParameters(DTransformerParameters):
    """Parameters of Algorithm 9: Algorithm 10's, and a final projection W_f (d_f, d_e), b_f (d_f,) before the norm.

    gamma and beta are (d_f,), W_u (N_V, d_f).
    """

    W_f: Matrix
    b_f: Vector


@dataclass(frozen=True)
class Hyperparameters:
    """The sizes of Algorithms 8 to 10. Each head has d_attn = d_mid = d_e / H; d_f is d_e."""

    N_V: int
    l_max: int
    L: int
    H: int
    d_e: int
    d_mlp: int


def random_parameters(sizes: Hyperparameters, rng: np.random.Generator) -> DTransformerParameters:
    """Initial parameters: normal embeddings (variance 1) and matrices (variance 1 / inputs), biases 0, identity norms.

    The paper does not specify the initialisation.
    """
    d_e = sizes.d_e
    return DTransformerParameters(
        W_e=rng.normal(size=(d_e, sizes.N_V)),
        W_p=rng.normal(size=(d_e, sizes.l_max)),
        layers=tuple(_random_layer(sizes, rng) for _ in range(sizes.L)),
        gamma=np.ones(d_e),
        beta=np.zeros(d_e),
        W_u=_random_matrix(sizes.N_V, d_e, rng),
    )


def combine(function: Callable[..., Any], first: AnyParameters, *others: AnyParameters) -> AnyParameters:
    """Parameters made by applying `function` to the corresponding arrays of one or more sets of the same shape."""
    tree: Any = first
    if isinstance(tree, np.ndarray):
        return function(first, *others)
    parts: tuple[Any, ...] = (first, *others)
    if isinstance(tree, tuple):
        combined: Any = tuple(combine(function, *elements) for elements in zip(*parts, strict=True))
        return combined
    names = [field.name for field in dataclasses.fields(tree)]
    return type(tree)(**{name: combine(function, *(getattr(part, name) for part in parts)) for name in names})


def _random_layer(sizes: Hyperparameters, rng: np.random.Generator) -> LayerParameters:
    d_e, d_mlp = sizes.d_e, sizes.d_mlp
    return LayerParameters(
        gamma_1=np.ones(d_e),
        beta_1=np.zeros(d_e),
        attention=_random_heads(sizes, rng),
        gamma_2=np.ones(d_e),
        beta_2=np.zeros(d_e),
        W_mlp1=_random_matrix(d_mlp, d_e, rng),
        b_mlp1=np.zeros(d_mlp),
        W_mlp2=_random_matrix(d_e, d_mlp, rng),
        b_mlp2=np.zeros(d_e),
    )


def _random_heads(sizes: Hyperparameters, rng: np.random.Generator) -> MultiHeadParameters:
    d_mid = sizes.d_e // sizes.H
    heads = tuple(_random_head(d_mid, sizes.d_e, rng) for _ in range(sizes.H))
    return MultiHeadParameters(heads, _random_matrix(sizes.d_e, sizes.H * d_mid, rng), np.zeros(sizes.d_e))


def _random_head(d_attn: int, d_e: int, rng: np.random.Generator) -> AttentionParameters:
    W_q, W_k, W_v = (_random_matrix(d_attn, d_e, rng) for _ in range(3))
    return AttentionParameters(W_q, np.zeros(d_attn), W_k, np.zeros(d_attn), W_v, np.zeros(d_attn))


def _random_matrix(rows: int, columns: int, rng: np.random.Generator) -> Matrix:
    return rng.normal(scale=1 / math.sqrt(columns), size=(rows, columns))


ActivationFunction = Callable[[Vector], Vector]
NextTokenModel = Callable[[Sequence[int]], Matrix]  # ids (l,) to P (N_V, l), column t for the token after position t


def token_embedding(v: int, W_e: Matrix) -> Vector:
    """Column v of W_e (d_e, N_V), the vector of token v (Phuong and Hutter 2022, Algorithm 1).

    Raises UsageError if v is not in the vocabulary.
    """
    check_token(v, W_e.shape[1])
    return W_e[:, v]


def positional_embedding(t: int, W_p: Matrix) -> Vector:
    """Column t of W_p (d_e, l_max), the learned vector of position t (Phuong and Hutter 2022, Algorithm 2).

    Raises ContextLengthError if t is l_max or more.
    """
    if t >= W_p.shape[1]:
        raise ContextLengthError(f"position {t} does not fit a context of {W_p.shape[1]}")
    return W_p[:, t]


def sinusoidal_encoding(t: int, d_e: int) -> Vector:
    """The fixed vector (d_e,) of position t: PE(t, 2i) = sin(t / 10000^(2i/d_e)), PE(t, 2i+1) = cos of the same.

    Vaswani et al. 2017, section 3.5.
    """
    even = np.arange(0, d_e, 2)
    angles = t / 10_000 ** (even / d_e)
    encoding = np.empty(d_e)
    encoding[0::2], encoding[1::2] = np.sin(angles), np.cos(angles[: d_e // 2])
    return encoding


def embed(x: Sequence[int], W_e: Matrix, W_p: Matrix) -> Matrix:
    """X = [e_1, ..., e_l] (d_e, l) with e_t = W_e[:, x[t]] + W_p[:, t] (Phuong and Hutter 2022, section 5)."""
    return np.stack([token_embedding(v, W_e) + positional_embedding(t, W_p) for t, v in enumerate(x)], axis=1)


def unembedding(e: Vector, W_u: Matrix) -> Vector:
    """softmax(W_u e): the distribution (N_V,) over the vocabulary for the vector e (d_e,), with W_u (N_V, d_e).

    Phuong and Hutter 2022, Algorithm 7.
    """
    return softmax(W_u @ e)


def unembedding_per_column(X: Matrix, W_u: Matrix) -> Matrix:
    """P (N_V, l): `unembedding` of every token of X (d_e, l)."""
    return np.stack([unembedding(X[:, t], W_u) for t in range(X.shape[1])], axis=1)


def check_token(v: int, N_V: int) -> None:
    """Raise a `UsageError` for an id outside the vocabulary; NumPy would take -1 for the last token."""
    if not 0 <= v < N_V:
        raise UsageError(f"token id {v} is not in a vocabulary of {N_V}")


def d_transformer_overwriting(x: Sequence[int], theta: DTransformerParameters) -> Matrix:
    """P (N_V, l): column t is the distribution of the token after x[0..t], with X overwritten by its normalised value.

    Phuong and Hutter 2022, Algorithm 10, as listed in lecture notes: X <- layer_norm(X), X <- X + MHAttention(X). The
    normalised value replaces X, and the residual is added to it.
    """
    X = overwriting_states(x, theta)[-1]
    return unembedding_per_column(X, theta.W_u)


def overwriting_states(x: Sequence[int], theta: DTransformerParameters) -> list[Matrix]:
    """The 1 + 4 L + 1 values that X (d_e, l) takes in `d_transformer_overwriting`, in order."""
    states = [embed(x, theta.W_e, theta.W_p)]
    for layer in theta.layers:
        states.append(layer_norm_per_column(states[-1], layer.gamma_1, layer.beta_1))
        states.append(states[-1] + masked_self_attention(states[-1], layer))
        states.append(layer_norm_per_column(states[-1], layer.gamma_2, layer.beta_2))
        states.append(states[-1] + mlp(states[-1], layer))
    states.append(layer_norm_per_column(states[-1], theta.gamma, theta.beta))
    return states


def d_transformer_gpt2(x: Sequence[int], theta: DTransformerParameters) -> Matrix:
    """P (N_V, l): column t is the distribution of the token after x[0..t], with GPT-2's residual stream.

    The form X <- X + MHAttention(layer_norm(X)): X is not normalised before the last norm, so it is the sum of all
    updates (Radford et al. 2019, section 2.3). GPT-2 uses the tanh approximation of GELU; this function uses the exact
    GELU, so that the two forms differ only in the residual.
    """
    X = embed(x, theta.W_e, theta.W_p)
    for layer in theta.layers:
        X = X + masked_self_attention(layer_norm_per_column(X, layer.gamma_1, layer.beta_1), layer)
        X = X + mlp(layer_norm_per_column(X, layer.gamma_2, layer.beta_2), layer)
    X = layer_norm_per_column(X, theta.gamma, theta.beta)
    return unembedding_per_column(X, theta.W_u)


def masked_self_attention(X: Matrix, layer: LayerParameters) -> Matrix:
    """MHAttention(X, X | W_l, Mask[t, t'] = [t <= t']), (d_e, l)."""
    return mh_attention(X, X, layer.attention, unidirectional_mask(X.shape[1]))


def mlp(X: Matrix, layer: LayerParameters) -> Matrix:
    """W_mlp2 GELU(W_mlp1 X + b_mlp1 1^T) + b_mlp2 1^T, (d_e, l)."""
    return feed_forward(X, mlp_weights(layer), gelu_erf)


def mlp_weights(layer: LayerParameters) -> tuple[Matrix, Vector, Matrix, Vector]:
    return layer.W_mlp1, layer.b_mlp1, layer.W_mlp2, layer.b_mlp2


def feed_forward(X: Matrix, weights: tuple[Matrix, Vector, Matrix, Vector], activation: ActivationFunction) -> Matrix:
    """W_2 activation(W_1 X + b_1 1^T) + b_2 1^T, (d_e, l): the same two maps for every column."""
    W_1, b_1, W_2, b_2 = weights
    return project(W_2, b_2, activation(project(W_1, b_1, X)))


def encoder_layer_states(X: Matrix, layer: LayerParameters, activation: ActivationFunction) -> list[Matrix]:
    """The four values that X (d_e, l) takes in one encoder layer: after attention, norm, MLP and norm."""
    no_mask = bidirectional_mask(X.shape[1], X.shape[1])
    attended = X + mh_attention(X, X, layer.attention, no_mask)
    normed = layer_norm_per_column(attended, layer.gamma_1, layer.beta_1)
    transformed = normed + feed_forward(normed, mlp_weights(layer), activation)
    return [attended, normed, transformed, layer_norm_per_column(transformed, layer.gamma_2, layer.beta_2)]


def decoder_layer_states(X: Matrix, Z: Matrix, layer: CrossLayerParameters) -> list[Matrix]:
    """The six values that X (d_e, l) takes in one decoder layer, with the encoder's output Z (d_e, l_z).

    After masked attention, norm, cross-attention, norm, MLP and norm.
    """
    attended = X + mh_attention(X, X, layer.attention, unidirectional_mask(X.shape[1]))
    first = layer_norm_per_column(attended, layer.gamma_3, layer.beta_3)
    crossed = first + cross_attention(first, Z, layer.cross_attention)
    second = layer_norm_per_column(crossed, layer.gamma_4, layer.beta_4)
    transformed = second + feed_forward(second, cross_mlp_weights(layer), relu)
    third = layer_norm_per_column(transformed, layer.gamma_5, layer.beta_5)
    return [attended, first, crossed, second, transformed, third]


def cross_mlp_weights(layer: CrossLayerParameters) -> tuple[Matrix, Vector, Matrix, Vector]:
    """The weights of a decoder layer's MLP."""
    return layer.W_mlp3, layer.b_mlp3, layer.W_mlp4, layer.b_mlp4


def conditional_log_probability(P: Matrix, x: Sequence[int]) -> float:
    """log P(x[1] .. x[l-1] | x[0]): the sum of log P[x[t+1], t], with P (N_V, l) a model's output for x (l,).

    P(x[0]) is not part of the sum: the first column already follows x[0], so the first token has no probability without
    a start token before it.
    """
    return sum(float(np.log(P[x[t + 1], t])) for t in range(len(x) - 1))


def d_inference(x: Sequence[int], model: NextTokenModel, l_gen: int, tau: float, rng: np.random.Generator) -> list[int]:
    """The continuation (l_gen,) of a prompt x (l,), each token drawn from q proportional to p^(1/tau).

    Phuong and Hutter 2022, Algorithm 14. `model` is for example `partial(d_transformer_gpt2, theta=theta)`.
    """
    sequence = list(x)
    for _ in range(l_gen):
        p = model(sequence)[:, -1]
        q = tempered(p, tau)
        sequence.append(int(rng.choice(len(q), p=q)))
    return sequence[len(x) :]


def tempered(p: Vector, tau: float) -> Vector:
    """p^(1/tau) scaled to sum to 1. As tau goes to 0 the most likely token remains; as it grows, all become equal.

    Raises UsageError unless tau is above 0.
    """
    if not tau > 0:
        raise UsageError(f"temperature {tau}: it must be above 0")
    with np.errstate(divide="ignore"):  # log 0 is -infinity, which softmax turns into probability 0
        return softmax(np.log(p.astype(np.float64)) / tau)

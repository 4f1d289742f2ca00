"""Training the decoder by stochastic gradient descent (Phuong and Hutter 2022, Algorithm 13), with its gradient.

The gradient of every part is written out by the chain rule of calculus. d_Y is the derivative of the loss by Y and has
Y's shape. `f_backward` takes the input of `f` and the derivative of its output, and returns the derivatives of its
input and its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from foretell.numerics.activations import gelu_erf, normal_distribution, relu
from foretell.numerics.norms import EPSILON
from foretell.textbook.attention import (
    AttentionParameters,
    BooleanMask,
    Matrix,
    MultiHeadParameters,
    Vector,
    attention,
    attention_weights,
    project,
    unidirectional_mask,
)
from foretell.textbook.transformer import (
    ActivationFunction,
    DTransformerParameters,
    LayerParameters,
    combine,
    conditional_log_probability,
    mlp_weights,
    overwriting_states,
    unembedding_per_column,
)


def d_training(
    sequences: Sequence[Sequence[int]], theta: DTransformerParameters, N_epochs: int, eta: float
) -> DTransformerParameters:
    """theta after N_epochs passes over the sequences with learning rate eta.

    Phuong and Hutter 2022, Algorithm 13. The model is `d_transformer_overwriting`.
    """
    for _ in range(N_epochs):
        for x in sequences:
            _, theta = sgd_step(x, theta, eta)
    return theta


def sgd_step(x: Sequence[int], theta: DTransformerParameters, eta: float) -> tuple[float, DTransformerParameters]:
    """The loss of x (l,) before the step, and theta - eta * gradient."""
    loss, gradient = loss_and_gradient(x, theta)
    return loss, combine(lambda weight, slope: weight - eta * slope, theta, gradient)


def loss_and_gradient(x: Sequence[int], theta: DTransformerParameters) -> tuple[float, DTransformerParameters]:
    """loss = -sum over t of log P[x[t+1], t] of `d_transformer_overwriting`, and its derivative by all of theta.

    Phuong and Hutter 2022, Algorithm 13. The derivative is the chain rule of calculus, from the last step to the first.
    """
    *states, last, normalised = overwriting_states(x, theta)
    P = unembedding_per_column(normalised, theta.W_u)
    d_scores = scores_backward(P, next_tokens(x))
    d_X, d_gamma, d_beta = layer_norm_backward(last, theta.gamma, theta.W_u.T @ d_scores)
    d_layers: list[LayerParameters] = []
    for layer in reversed(range(len(theta.layers))):
        d_X, d_layer = layer_backward(states[4 * layer : 4 * layer + 4], theta.layers[layer], d_X)
        d_layers.insert(0, d_layer)
    d_W_e, d_W_p = embed_backward(x, theta.W_e, theta.W_p, d_X)
    gradient = DTransformerParameters(d_W_e, d_W_p, tuple(d_layers), d_gamma, d_beta, d_scores @ normalised.T)
    return -conditional_log_probability(P, x), gradient


def next_tokens(x: Sequence[int]) -> dict[int, int]:
    """The target of each position except the last: the token after it."""
    return dict(enumerate(x[1:]))


def layer_backward(states: Sequence[Matrix], layer: LayerParameters, d_X: Matrix) -> tuple[Matrix, LayerParameters]:
    """d_X before a layer from d_X after it, and the layer's gradient.

    states: X before each of the layer's four steps: first norm, attention, second norm, MLP.
    """
    before_norm_1, before_attention, before_norm_2, before_mlp = states
    # The derivative of X + f(X) is the sum of two paths: directly to X, and through f
    d_inner, d_mlp = feed_forward_backward(before_mlp, mlp_weights(layer), gelu_erf, d_X)
    d_X, d_gamma_2, d_beta_2 = layer_norm_backward(before_norm_2, layer.gamma_2, d_X + d_inner)
    X, mask = before_attention, unidirectional_mask(before_attention.shape[1])
    d_queries, d_context, d_attention = mh_attention_backward(X, X, layer.attention, mask, d_X)
    d_X, d_gamma_1, d_beta_1 = layer_norm_backward(before_norm_1, layer.gamma_1, d_X + d_queries + d_context)
    return d_X, LayerParameters(d_gamma_1, d_beta_1, d_attention, d_gamma_2, d_beta_2, *d_mlp)


def gelu_erf_derivative(x: Vector) -> Vector:
    """Phi(x) + x phi(x), with the standard normal distribution Phi and its density phi."""
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return normal_distribution(x) + x * density


def relu_derivative(x: Vector) -> Vector:
    """1 if x is above 0, else 0, per element."""
    return (x > 0).astype(x.dtype)


DERIVATIVES: dict[ActivationFunction, ActivationFunction] = {gelu_erf: gelu_erf_derivative, relu: relu_derivative}
FeedForwardWeights = tuple[Matrix, Vector, Matrix, Vector]


def scores_backward(P: Matrix, targets: Mapping[int, int]) -> Matrix:
    """d_scores (N_V, l) of the scores W_u X: for softmax and logarithm together, P minus the one-hot target.

    targets: position -> token. The column of a position without a target is 0.
    """
    d_scores = np.zeros_like(P)
    for t, target in targets.items():
        d_scores[:, t] = P[:, t]
        d_scores[target, t] -= 1
    return d_scores


def project_backward(W: Matrix, X: Matrix, d_Y: Matrix) -> tuple[Matrix, Matrix, Vector]:
    """d_X, d_W, d_b of Y = W X + b 1^T."""
    return W.T @ d_Y, d_Y @ X.T, d_Y.sum(axis=1)


def layer_norm_backward(X: Matrix, gamma: Vector, d_Y: Matrix) -> tuple[Matrix, Vector, Vector]:
    """d_X (d, l), d_gamma (d,), d_beta (d,) of `layer_norm_per_column`.

    The two subtracted terms come from the mean and the variance, which depend on every element of the column.
    """
    d_X, d_gamma = np.empty_like(X), np.zeros_like(gamma)
    for t in range(X.shape[1]):
        centred = X[:, t] - X[:, t].mean()
        deviation = np.sqrt((centred**2).mean() + EPSILON)
        unit, d_unit = centred / deviation, d_Y[:, t] * gamma
        d_X[:, t] = (d_unit - d_unit.mean() - unit * (d_unit * unit).mean()) / deviation
        d_gamma += d_Y[:, t] * unit
    return d_X, d_gamma, d_Y.sum(axis=1)


def feed_forward_backward(
    X: Matrix, weights: FeedForwardWeights, activation: ActivationFunction, d_Y: Matrix
) -> tuple[Matrix, FeedForwardWeights]:
    """d_X and (d_W_1, d_b_1, d_W_2, d_b_2) of `feed_forward`."""
    W_1, b_1, W_2, _ = weights
    hidden = project(W_1, b_1, X)
    d_active, d_W_2, d_b_2 = project_backward(W_2, activation(hidden), d_Y)
    d_X, d_W_1, d_b_1 = project_backward(W_1, X, d_active * DERIVATIVES[activation](hidden))
    return d_X, (d_W_1, d_b_1, d_W_2, d_b_2)


def mh_attention_backward(
    X: Matrix, Z: Matrix, W: MultiHeadParameters, mask: BooleanMask, d_Y: Matrix
) -> tuple[Matrix, Matrix, MultiHeadParameters]:
    """d_X, d_Z and the gradient of `mh_attention`. In self-attention Z is X, and d_X + d_Z is the whole derivative."""
    stacked = np.concatenate([attention(X, Z, head, mask) for head in W.heads])
    d_stacked, d_W_o, d_b_o = project_backward(W.W_o, stacked, d_Y)
    parts = np.split(d_stacked, len(W.heads))
    backward = [attention_backward(X, Z, head, mask, part) for head, part in zip(W.heads, parts, strict=True)]
    d_X = np.sum([d_X for d_X, _, _ in backward], axis=0)
    d_Z = np.sum([d_Z for _, d_Z, _ in backward], axis=0)
    return d_X, d_Z, MultiHeadParameters(tuple(d_head for _, _, d_head in backward), d_W_o, d_b_o)


def attention_backward(
    X: Matrix, Z: Matrix, W: AttentionParameters, mask: BooleanMask, d_Y: Matrix
) -> tuple[Matrix, Matrix, AttentionParameters]:
    """d_X, d_Z and the gradient of one head."""
    Q, K, V = (project(W.W_q, W.b_q, X), project(W.W_k, W.b_k, Z), project(W.W_v, W.b_v, Z))
    weights = attention_weights(X, Z, W, mask)
    d_Q, d_K, d_V = mixing_backward(Q, K, V, weights, d_Y)
    d_X, d_W_q, d_b_q = project_backward(W.W_q, X, d_Q)
    d_Z_k, d_W_k, d_b_k = project_backward(W.W_k, Z, d_K)
    d_Z_v, d_W_v, d_b_v = project_backward(W.W_v, Z, d_V)
    return d_X, d_Z_k + d_Z_v, AttentionParameters(d_W_q, d_b_q, d_W_k, d_b_k, d_W_v, d_b_v)


def mixing_backward(Q: Matrix, K: Matrix, V: Matrix, weights: Matrix, d_Y: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """d_Q, d_K, d_V of V softmax(K^T Q / sqrt(d_attn)), query by query. Masked entries have weight 0 and gradient 0."""
    d_Q, d_K, d_V = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    for t in range(Q.shape[1]):
        alpha = weights[:, t]
        d_alpha = V.T @ d_Y[:, t]
        d_scores = alpha * (d_alpha - alpha @ d_alpha) / math.sqrt(Q.shape[0])
        d_Q[:, t] = K @ d_scores
        d_K += np.outer(Q[:, t], d_scores)
        d_V += np.outer(d_Y[:, t], alpha)
    return d_Q, d_K, d_V


def embed_backward(x: Sequence[int], W_e: Matrix, W_p: Matrix, d_X: Matrix) -> tuple[Matrix, Matrix]:
    """d_W_e and d_W_p of `embed`: each token's derivative is added to the two columns that were summed for it."""
    d_W_e, d_W_p = np.zeros_like(W_e), np.zeros_like(W_p)
    for t, v in enumerate(x):
        d_W_e[:, v] += d_X[:, t]
        d_W_p[:, t] += d_X[:, t]
    return d_W_e, d_W_p

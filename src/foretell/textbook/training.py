"""Training the decoder by stochastic gradient descent (Phuong and Hutter 2022, Algorithm 13)."""

from __future__ import annotations

from collections.abc import Sequence

from foretell.activations import gelu_erf
from foretell.textbook.attention import unidirectional_mask
from foretell.textbook.embedding import unembedding_per_column
from foretell.textbook.gradients import (
    embed_backward,
    feed_forward_backward,
    layer_norm_backward,
    mh_attention_backward,
    scores_backward,
)
from foretell.textbook.parameters import DTransformerParameters, LayerParameters, combine
from foretell.textbook.transformer import conditional_log_probability, mlp_weights, overwriting_states
from foretell.textbook.vectors import Matrix


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
    """The target of each position but the last: the token after it."""
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

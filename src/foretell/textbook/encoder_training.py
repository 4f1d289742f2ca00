"""Training with an encoder by stochastic gradient descent (Phuong and Hutter 2022, Algorithms 11 and 12).

Algorithm 11 trains an encoder-decoder on pairs of sequences, Algorithm 12 an encoder on tokens that were masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from foretell.activations import gelu_erf, relu
from foretell.textbook.attention import bidirectional_mask, project, unidirectional_mask
from foretell.textbook.embedding import embed, unembedding_per_column
from foretell.textbook.encoder_decoder import cross_mlp_weights, decoder_layer_states, e_states, encoder_states
from foretell.textbook.gradients import (
    embed_backward,
    feed_forward_backward,
    gelu_erf_derivative,
    layer_norm_backward,
    mh_attention_backward,
    project_backward,
    scores_backward,
)
from foretell.textbook.parameters import (
    CrossLayerParameters,
    EDTransformerParameters,
    ETransformerParameters,
    LayerParameters,
    combine,
)
from foretell.textbook.training import next_tokens
from foretell.textbook.transformer import conditional_log_probability, mlp_weights
from foretell.textbook.vectors import Matrix, Vector

Pair = tuple[Sequence[int], Sequence[int]]  # a source z and its target x


def ed_training(
    pairs: Sequence[Pair], theta: EDTransformerParameters, N_epochs: int, eta: float
) -> EDTransformerParameters:
    """theta after N_epochs passes over the pairs (z, x) with learning rate eta.

    Phuong and Hutter 2022, Algorithm 11. A target x starts with bos_token and ends with eos_token.
    """
    for _ in range(N_epochs):
        for z, x in pairs:
            _, gradient = ed_loss_and_gradient(z, x, theta)
            theta = combine(lambda weight, slope: weight - eta * slope, theta, gradient)
    return theta


def e_training(
    sequences: Sequence[Sequence[int]],
    theta: ETransformerParameters,
    N_epochs: int,
    eta: float,
    masking: Callable[[Sequence[int]], tuple[list[int], list[int]]],
) -> ETransformerParameters:
    """theta after N_epochs passes over the sequences, each masked again (Phuong and Hutter 2022, Algorithm 12).

    masking: a sequence to the masked sequence and the masked positions, such as `mask_tokens` with its options.
    """
    for _ in range(N_epochs):
        for x in sequences:
            masked, positions = masking(x)
            _, gradient = masked_loss_and_gradient(x, masked, positions, theta)
            theta = combine(lambda weight, slope: weight - eta * slope, theta, gradient)
    return theta


def mask_tokens(
    x: Sequence[int], mask_token: int, p_mask: float, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """x with each token replaced by `mask_token` with probability p_mask, and the positions where it was.

    Phuong and Hutter 2022, Algorithm 12, lines 4 to 7.
    """
    masked = [mask_token if rng.random() < p_mask else v for v in x]
    return masked, [t for t, v in enumerate(masked) if v == mask_token]


def ed_loss_and_gradient(
    z: Sequence[int], x: Sequence[int], theta: EDTransformerParameters
) -> tuple[float, EDTransformerParameters]:
    """loss = -sum over t of log P[x[t+1], t] of `ed_transformer`, and its derivative by all of theta.

    Phuong and Hutter 2022, Algorithm 11, lines 4 to 6.
    """
    encoder = encoder_states(z, theta)
    Z, X = encoder[-1], embed(x, theta.W_e, theta.W_p)
    decoder = [X]
    for layer in theta.decoder:
        decoder += decoder_layer_states(decoder[-1], Z, layer)
    P = unembedding_per_column(decoder[-1], theta.W_u)
    d_scores = scores_backward(P, next_tokens(x))
    d_X, d_Z, d_decoder = decoder_backward(decoder, Z, theta.decoder, theta.W_u.T @ d_scores)
    d_z, d_encoder = encoder_backward(encoder, theta.encoder, relu, d_Z)
    embeddings = [embed_backward(ids, theta.W_e, theta.W_p, d) for ids, d in ((z, d_z), (x, d_X))]
    d_W_e, d_W_p = (first + second for first, second in zip(*embeddings, strict=True))
    gradient = EDTransformerParameters(d_W_e, d_W_p, d_encoder, d_decoder, d_scores @ decoder[-1].T)
    return -conditional_log_probability(P, x), gradient


def masked_loss_and_gradient(
    x: Sequence[int], masked: Sequence[int], positions: Sequence[int], theta: ETransformerParameters
) -> tuple[float, ETransformerParameters]:
    """loss = -sum of log P[x[t], t] over the masked positions t, with P of the masked sequence, and its derivative.

    Phuong and Hutter 2022, Algorithm 12, lines 8 to 10.
    """
    states = e_states(masked, theta)
    hidden, projected, normalised = states[-3:]
    P = unembedding_per_column(normalised, theta.W_u)
    d_scores = scores_backward(P, {t: x[t] for t in positions})
    d_projected, d_gamma, d_beta = layer_norm_backward(projected, theta.gamma, theta.W_u.T @ d_scores)
    d_inner = d_projected * gelu_erf_derivative(project(theta.W_f, theta.b_f, hidden))
    d_X, d_W_f, d_b_f = project_backward(theta.W_f, hidden, d_inner)
    d_X, d_layers = encoder_backward(states[:-2], theta.layers, gelu_erf, d_X)
    d_W_e, d_W_p = embed_backward(masked, theta.W_e, theta.W_p, d_X)
    d_W_u = d_scores @ normalised.T
    gradient = ETransformerParameters(d_W_e, d_W_p, d_layers, d_W_f, d_b_f, d_gamma, d_beta, d_W_u)
    return -sum(float(np.log(P[x[t], t])) for t in positions), gradient


def encoder_backward(
    states: Sequence[Matrix], layers: Sequence[LayerParameters], activation: Callable[[Vector], Vector], d_X: Matrix
) -> tuple[Matrix, tuple[LayerParameters, ...]]:
    """d_X before the layers from d_X after them, and the layers' gradients. states: 1 + 4 L values of X."""
    d_layers: list[LayerParameters] = []
    for index in reversed(range(len(layers))):
        d_X, d_layer = encoder_layer_backward(states[4 * index : 4 * index + 4], layers[index], activation, d_X)
        d_layers.insert(0, d_layer)
    return d_X, tuple(d_layers)


def encoder_layer_backward(
    states: Sequence[Matrix], layer: LayerParameters, activation: Callable[[Vector], Vector], d_X: Matrix
) -> tuple[Matrix, LayerParameters]:
    """d_X before a layer from d_X after it, and its gradient.

    states: X before attention, before the first norm, before the MLP and before the second norm.
    """
    X, before_norm_1, before_mlp, before_norm_2 = states
    d_X, d_gamma_2, d_beta_2 = layer_norm_backward(before_norm_2, layer.gamma_2, d_X)
    d_inner, d_mlp = feed_forward_backward(before_mlp, mlp_weights(layer), activation, d_X)
    d_X, d_gamma_1, d_beta_1 = layer_norm_backward(before_norm_1, layer.gamma_1, d_X + d_inner)
    no_mask = bidirectional_mask(X.shape[1], X.shape[1])
    d_queries, d_context, d_attention = mh_attention_backward(X, X, layer.attention, no_mask, d_X)
    d_layer = LayerParameters(d_gamma_1, d_beta_1, d_attention, d_gamma_2, d_beta_2, *d_mlp)
    return d_X + d_queries + d_context, d_layer


def decoder_backward(
    states: Sequence[Matrix], Z: Matrix, layers: Sequence[CrossLayerParameters], d_X: Matrix
) -> tuple[Matrix, Matrix, tuple[CrossLayerParameters, ...]]:
    """d_X before the layers from d_X after them, d_Z of the encoder's output, and the layers' gradients.

    states: 1 + 6 L values of X. Every layer reads Z, so its derivative is the sum over the layers.
    """
    d_Z, d_layers = np.zeros_like(Z), []
    for index in reversed(range(len(layers))):
        d_X, d_Z_layer, d_layer = decoder_layer_backward(states[6 * index : 6 * index + 6], Z, layers[index], d_X)
        d_Z += d_Z_layer
        d_layers.insert(0, d_layer)
    return d_X, d_Z, tuple(d_layers)


def decoder_layer_backward(
    states: Sequence[Matrix], Z: Matrix, layer: CrossLayerParameters, d_X: Matrix
) -> tuple[Matrix, Matrix, CrossLayerParameters]:
    """d_X before a layer from d_X after it, d_Z, and the layer's gradient.

    states: X before masked attention, the first norm, cross-attention, the second norm, the MLP and the third norm.
    """
    X, before_norm_3, before_cross, before_norm_4, before_mlp, before_norm_5 = states
    d_X, d_gamma_5, d_beta_5 = layer_norm_backward(before_norm_5, layer.gamma_5, d_X)
    d_inner, d_mlp = feed_forward_backward(before_mlp, cross_mlp_weights(layer), relu, d_X)
    d_X, d_gamma_4, d_beta_4 = layer_norm_backward(before_norm_4, layer.gamma_4, d_X + d_inner)
    no_mask = bidirectional_mask(Z.shape[1], X.shape[1])
    d_queries, d_Z, d_cross = mh_attention_backward(before_cross, Z, layer.cross_attention, no_mask, d_X)
    d_X, d_gamma_3, d_beta_3 = layer_norm_backward(before_norm_3, layer.gamma_3, d_X + d_queries)
    causal = unidirectional_mask(X.shape[1])
    d_queries, d_context, d_attention = mh_attention_backward(X, X, layer.attention, causal, d_X)
    d_layer = CrossLayerParameters(
        d_attention, d_gamma_3, d_beta_3, d_cross, d_gamma_4, d_beta_4, *d_mlp, d_gamma_5, d_beta_5
    )
    return d_X + d_queries + d_context, d_Z, d_layer

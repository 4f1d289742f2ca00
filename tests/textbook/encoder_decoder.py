"""The algorithms of Phuong and Hutter 2022 for models with an encoder: 8, 9, 11, 12 and 15.

Algorithm 8 is the encoder-decoder, 9 the encoder. 11 and 12 train them, on pairs of sequences and on masked tokens. 15
decodes. No lesson runs them. They show that the textbook's layers and gradients also make up these models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from foretell.numerics.activations import gelu_erf, relu
from foretell.textbook.attention import Matrix, bidirectional_mask, layer_norm_per_column, project, unidirectional_mask
from foretell.textbook.training import (
    embed_backward,
    feed_forward_backward,
    gelu_erf_derivative,
    layer_norm_backward,
    mh_attention_backward,
    next_tokens,
    project_backward,
    scores_backward,
)
from foretell.textbook.transformer import (
    ActivationFunction,
    CrossLayerParameters,
    ETransformerParameters,
    Hyperparameters,
    LayerParameters,
    combine,
    conditional_log_probability,
    cross_mlp_weights,
    decoder_layer_states,
    embed,
    encoder_layer_states,
    mlp_weights,
    random_parameters,
    tempered,
    unembedding_per_column,
)


@dataclass(frozen=True)
class EDTransformerParameters:
    """Parameters of Algorithm 8: W_e (d_e, N_V), W_p (d_e, l_max), the layers of both trunks, W_u (N_V, d_e).

    Source and target have one vocabulary.
    """

    W_e: Matrix
    W_p: Matrix
    encoder: tuple[LayerParameters, ...]
    decoder: tuple[CrossLayerParameters, ...]
    W_u: Matrix


# ids of the source (l_z,) and of the target so far (l,), to P (N_V, l)
SequenceToSequenceModel = Callable[[Sequence[int], Sequence[int]], Matrix]
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
    gradient = ETransformerParameters(d_W_e, d_W_p, d_layers, d_gamma, d_beta, d_W_u, d_W_f, d_b_f)
    return -sum(float(np.log(P[x[t], t])) for t in positions), gradient


def encoder_backward(
    states: Sequence[Matrix], layers: Sequence[LayerParameters], activation: ActivationFunction, d_X: Matrix
) -> tuple[Matrix, tuple[LayerParameters, ...]]:
    """d_X before the layers from d_X after them, and the layers' gradients. states: 1 + 4 L values of X."""
    d_layers: list[LayerParameters] = []
    for index in reversed(range(len(layers))):
        d_X, d_layer = encoder_layer_backward(states[4 * index : 4 * index + 4], layers[index], activation, d_X)
        d_layers.insert(0, d_layer)
    return d_X, tuple(d_layers)


def encoder_layer_backward(
    states: Sequence[Matrix], layer: LayerParameters, activation: ActivationFunction, d_X: Matrix
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


def ed_transformer(z: Sequence[int], x: Sequence[int], theta: EDTransformerParameters) -> Matrix:
    """P (N_V, l): column t is the distribution of the token after x[0..t], given the source z (l_z,).

    Phuong and Hutter 2022, Algorithm 8; Vaswani et al. 2017, section 3.
    """
    Z = encoder_states(z, theta)[-1]
    X = embed(x, theta.W_e, theta.W_p)
    for layer in theta.decoder:
        X = decoder_layer_states(X, Z, layer)[-1]
    return unembedding_per_column(X, theta.W_u)


def encoder_states(z: Sequence[int], theta: EDTransformerParameters) -> list[Matrix]:
    """The 1 + 4 L values that Z (d_e, l_z) takes in the encoder of `ed_transformer`, in order."""
    states = [embed(z, theta.W_e, theta.W_p)]
    for layer in theta.encoder:
        states += encoder_layer_states(states[-1], layer, relu)
    return states


def e_transformer(x: Sequence[int], theta: ETransformerParameters) -> Matrix:
    """P (N_V, l): column t is the distribution of the token at position t, given all of x (l,), which may be masked.

    Phuong and Hutter 2022, Algorithm 9: BERT (Devlin et al. 2019).
    """
    X = e_states(x, theta)[-1]
    return unembedding_per_column(X, theta.W_u)


def e_states(x: Sequence[int], theta: ETransformerParameters) -> list[Matrix]:
    """The 1 + 4 L + 2 values that X takes in `e_transformer`, in order."""
    states = [embed(x, theta.W_e, theta.W_p)]
    for layer in theta.layers:
        states += encoder_layer_states(states[-1], layer, gelu_erf)
    states.append(gelu_erf(project(theta.W_f, theta.b_f, states[-1])))
    states.append(layer_norm_per_column(states[-1], theta.gamma, theta.beta))
    return states


def ed_inference(
    z: Sequence[int], model: SequenceToSequenceModel, ends: tuple[int, int], tau: float, rng: np.random.Generator
) -> list[int]:
    """x^ [bos_token, ..., eos_token] for a source z (l_z,): each token is drawn from q proportional to p^(1/tau).

    Phuong and Hutter 2022, Algorithm 15. `model` is for example `partial(ed_transformer, theta=theta)`, and `ends` is
    (bos_token, eos_token).

    Raises:
        ContextLengthError: no eos_token was drawn before the model's context was full.
    """
    bos_token, eos_token = ends
    sequence = [bos_token]
    y = None
    while y != eos_token:
        p = model(z, sequence)[:, -1]
        q = tempered(p, tau)
        y = int(rng.choice(len(q), p=q))
        sequence.append(y)
    return sequence


def random_ed_parameters(sizes: Hyperparameters, rng: np.random.Generator) -> EDTransformerParameters:
    """Initial parameters of the encoder-decoder, from three draws of a decoder's."""
    encoder, decoder, cross = (random_parameters(sizes, rng) for _ in range(3))
    layers = tuple(cross_layer(own, other) for own, other in zip(decoder.layers, cross.layers, strict=True))
    return EDTransformerParameters(encoder.W_e, encoder.W_p, encoder.layers, layers, encoder.W_u)


def cross_layer(layer: LayerParameters, cross: LayerParameters) -> CrossLayerParameters:
    """A decoder layer with cross-attention; the third norm is the first one again."""
    gamma, beta, mlp = layer.gamma_1, layer.beta_1, mlp_weights(layer)
    own, other = layer.attention, cross.attention
    return CrossLayerParameters(own, gamma, beta, other, layer.gamma_2, layer.beta_2, *mlp, gamma, beta)


def random_e_parameters(sizes: Hyperparameters, rng: np.random.Generator) -> ETransformerParameters:
    """Initial parameters of the encoder: a decoder's, and a final projection."""
    theta, d_e = random_parameters(sizes, rng), sizes.d_e
    W_f, b_f = rng.normal(scale=d_e**-0.5, size=(d_e, d_e)), np.zeros(d_e)
    return ETransformerParameters(**vars(theta), W_f=W_f, b_f=b_f)

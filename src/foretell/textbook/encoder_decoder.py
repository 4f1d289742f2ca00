"""The encoder-decoder and the encoder-only transformer (Phuong and Hutter 2022, Algorithms 8 and 9).

Both normalise after each residual. The encoder sees all of its sequence; the decoder's masked attention sees its own
earlier tokens, and its cross-attention the encoder's whole output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foretell.activations import gelu_erf, relu
from foretell.textbook.attention import bidirectional_mask, cross_attention, mh_attention, project, unidirectional_mask
from foretell.textbook.embedding import embed, unembedding_per_column
from foretell.textbook.parameters import (
    CrossLayerParameters,
    EDTransformerParameters,
    ETransformerParameters,
    LayerParameters,
)
from foretell.textbook.transformer import feed_forward, mlp_weights
from foretell.textbook.vectors import Matrix, Vector, layer_norm_per_column

# ids of the source (l_z,) and of the target so far (l,), to P (N_V, l)
SequenceToSequenceModel = Callable[[Sequence[int], Sequence[int]], Matrix]
Activation = Callable[[Vector], Vector]


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


def encoder_layer_states(X: Matrix, layer: LayerParameters, activation: Activation) -> list[Matrix]:
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
    return [
        attended,
        first,
        crossed,
        second,
        transformed,
        layer_norm_per_column(transformed, layer.gamma_5, layer.beta_5),
    ]


def cross_mlp_weights(layer: CrossLayerParameters) -> tuple[Matrix, Vector, Matrix, Vector]:
    """The weights of a decoder layer's MLP."""
    return layer.W_mlp3, layer.b_mlp3, layer.W_mlp4, layer.b_mlp4

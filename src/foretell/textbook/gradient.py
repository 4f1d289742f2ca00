"""The gradient of the listing's loss, written out: the values of X are walked through backwards.

d_Y stands for the derivative of the loss by Y, and has Y's shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from foretell.textbook.arrays import Matrix
from foretell.textbook.backward import embed_backward, layer_norm_backward, mh_attention_backward, mlp_backward
from foretell.textbook.chain_rule import conditional_log_probability
from foretell.textbook.embedding import unembedding_per_column
from foretell.textbook.parameters import DTransformerParameters, LayerParameters
from foretell.textbook.transformer import overwriting_states


def loss_and_gradient(x: Sequence[int], theta: DTransformerParameters) -> tuple[float, DTransformerParameters]:
    """loss = -sum over t of log P[x[t+1], t] of `d_transformer_overwriting`, and its derivative by all of theta.

    Phuong and Hutter 2022, Algorithm 13; the derivative is the chain rule of calculus, step by step.
    """
    *states, last, normalised = overwriting_states(x, theta)
    P = unembedding_per_column(normalised, theta.W_u)
    d_scores = scores_backward(P, x)
    d_X, d_gamma, d_beta = layer_norm_backward(last, theta.gamma, theta.W_u.T @ d_scores)
    d_layers: list[LayerParameters] = []
    for number in reversed(range(len(theta.layers))):
        d_X, d_layer = layer_backward(states[4 * number : 4 * number + 4], theta.layers[number], d_X)
        d_layers.insert(0, d_layer)
    d_W_e, d_W_p = embed_backward(x, theta.W_e, theta.W_p, d_X)
    gradient = DTransformerParameters(d_W_e, d_W_p, tuple(d_layers), d_gamma, d_beta, d_scores @ normalised.T)
    return -conditional_log_probability(P, x), gradient


def scores_backward(P: Matrix, x: Sequence[int]) -> Matrix:
    """d_scores (N_V, l) of the scores W_u X: softmax and logarithm together leave P minus the one-hot target.

    The last token has no target, so its column is 0.
    """
    d_scores = P.copy()
    for t in range(len(x) - 1):
        d_scores[x[t + 1], t] -= 1
    d_scores[:, -1] = 0
    return d_scores


def layer_backward(states: Sequence[Matrix], layer: LayerParameters, d_X: Matrix) -> tuple[Matrix, LayerParameters]:
    """From d_X after a layer to d_X before it, and the layer's gradient.

    states: X as the layer's four steps found it: first norm, attention, second norm, MLP.
    """
    before_norm_1, before_attention, before_norm_2, before_mlp = states
    # X + f(X): the derivative goes both around f and through it
    d_inner, d_mlp = mlp_backward(before_mlp, layer, d_X)
    d_X, d_gamma_2, d_beta_2 = layer_norm_backward(before_norm_2, layer.gamma_2, d_X + d_inner)
    d_inner, d_attention = mh_attention_backward(before_attention, layer.attention, d_X)
    d_X, d_gamma_1, d_beta_1 = layer_norm_backward(before_norm_1, layer.gamma_1, d_X + d_inner)
    return d_X, LayerParameters(d_gamma_1, d_beta_1, d_attention, d_gamma_2, d_beta_2, *d_mlp)

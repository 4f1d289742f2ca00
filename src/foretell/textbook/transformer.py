"""The decoder-only transformer, in the two forms in which its Algorithm 10 is told.

Both normalise before attention and before the MLP. They differ in what the residual is added to.
"""

from __future__ import annotations

from collections.abc import Sequence

from foretell.textbook.activation import gelu_erf
from foretell.textbook.arrays import Matrix
from foretell.textbook.attention import mh_attention, project, unidirectional_mask
from foretell.textbook.embedding import embed, unembedding_per_column
from foretell.textbook.layer_norm import layer_norm_per_column
from foretell.textbook.parameters import DTransformerParameters, LayerParameters


def d_transformer_overwriting(x: Sequence[int], theta: DTransformerParameters) -> Matrix:
    """P (N_V, l): column t is the distribution of the token after x[0..t], by the listing that overwrites X.

    Phuong and Hutter 2022, Algorithm 10, in the form X <- layer_norm(X), X <- X + MHAttention(X): the normalised value
    replaces X, and the residual is added to that.
    """
    X = overwriting_states(x, theta)[-1]
    return unembedding_per_column(X, theta.W_u)


def overwriting_states(x: Sequence[int], theta: DTransformerParameters) -> list[Matrix]:
    """Every value that X (d_e, l) takes in `d_transformer_overwriting`, in order: 1 + 4 L + 1 of them."""
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

    The form X <- X + MHAttention(layer_norm(X)): X itself is never normalised before the last norm, so a sum of all
    updates runs through the model (Radford et al. 2019, section 2.3). GPT-2's own GELU is the tanh approximation; here
    it is the exact one, so that the two functions differ in the residual alone.
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
    hidden = gelu_erf(project(layer.W_mlp1, layer.b_mlp1, X))
    return project(layer.W_mlp2, layer.b_mlp2, hidden)

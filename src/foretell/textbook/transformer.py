"""The decoder-only transformer (Phuong and Hutter 2022, Algorithm 10), in two forms, and a sequence's probability.

Both forms normalise before attention and before the MLP. They differ in what the residual is added to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from foretell.activations import gelu_erf
from foretell.textbook.attention import mh_attention, project, unidirectional_mask
from foretell.textbook.embedding import embed, unembedding_per_column
from foretell.textbook.parameters import DTransformerParameters, LayerParameters
from foretell.textbook.vectors import Matrix, Vector, layer_norm_per_column

NextTokenModel = Callable[[Sequence[int]], Matrix]  # ids (l,) to P (N_V, l), column t for the token after position t


def d_transformer_overwriting(x: Sequence[int], theta: DTransformerParameters) -> Matrix:
    """P (N_V, l): column t is the distribution of the token after x[0..t], with X overwritten by its normalised value.

    Phuong and Hutter 2022, Algorithm 10, in the form that lecture notes list it, X <- layer_norm(X),
    X <- X + MHAttention(X): the normalised value replaces X, and the residual is added to that.
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
    updates (Radford et al. 2019, section 2.3). GPT-2's own GELU is the tanh approximation; this function uses the exact
    one, so that the two forms differ in the residual alone.
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
    """The weights of a layer's MLP."""
    return layer.W_mlp1, layer.b_mlp1, layer.W_mlp2, layer.b_mlp2


def feed_forward(
    X: Matrix, weights: tuple[Matrix, Vector, Matrix, Vector], activation: Callable[[Vector], Vector]
) -> Matrix:
    """W_2 activation(W_1 X + b_1 1^T) + b_2 1^T, (d_e, l): the same two maps for every column."""
    W_1, b_1, W_2, b_2 = weights
    return project(W_2, b_2, activation(project(W_1, b_1, X)))


def conditional_log_probability(P: Matrix, x: Sequence[int]) -> float:
    """log P(x[1] .. x[l-1] | x[0]): the sum of log P[x[t+1], t], with P (N_V, l) a model's output for x (l,).

    P(x[0]) is not part of the sum. The first column already follows x[0], so the model gives no probability for a first
    token. That needs a start token before it, see `sequence_log_probability`.
    """
    return sum(float(np.log(P[x[t + 1], t])) for t in range(len(x) - 1))


def sequence_log_probability(x: Sequence[int], bos_token: int, model: NextTokenModel) -> float:
    """log P(x[0] .. x[l-1]) of the whole sequence, by a model trained on sequences that start with `bos_token`.

    The chain rule P(x_1 .. x_l) = product over t of P(x_t | x_1 .. x_{t-1}). Phuong and Hutter 2022, sections 3
    (sequence modelling) and 4 (bos_token).
    """
    started = [bos_token, *x]
    return conditional_log_probability(model(started), started)

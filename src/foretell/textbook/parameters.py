"""The parameters theta of the formal algorithms, under the symbols of Phuong and Hutter 2022.

A gradient has the shape of its parameters, so it is held in the same classes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from foretell.textbook.vectors import Matrix, Vector

AnyParameters = TypeVar("AnyParameters")


@dataclass(frozen=True)
class AttentionParameters:
    """One head (Algorithm 4): W_q (d_attn, d_x), W_k (d_attn, d_z), W_v (d_out, d_z), and a bias each."""

    W_q: Matrix
    b_q: Vector
    W_k: Matrix
    b_k: Vector
    W_v: Matrix
    b_v: Vector


@dataclass(frozen=True)
class MultiHeadParameters:
    """H heads with values of size d_mid, and W_o (d_out, H d_mid), b_o (d_out,) (Algorithm 5)."""

    heads: tuple[AttentionParameters, ...]
    W_o: Matrix
    b_o: Vector


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
class ETransformerParameters:
    """Parameters of Algorithm 9: as of Algorithm 10, and a final projection W_f (d_f, d_e), b_f (d_f,) before the norm.

    gamma and beta are (d_f,), W_u (N_V, d_f).
    """

    W_e: Matrix
    W_p: Matrix
    layers: tuple[LayerParameters, ...]
    W_f: Matrix
    b_f: Vector
    gamma: Vector
    beta: Vector
    W_u: Matrix


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
    """Initial parameters: normal embeddings (variance 1), normal matrices (variance 1 / inputs), biases 0, plain norms.

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

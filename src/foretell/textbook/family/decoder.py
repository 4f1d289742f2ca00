"""The whole forward pass: token ids to logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from foretell.config import ModelConfig
from foretell.errors import ContextLengthError, UsageError
from foretell.textbook.arrays import Matrix, Vector
from foretell.textbook.embedding import check_token, sinusoidal_encoding
from foretell.textbook.family.attention import attention
from foretell.textbook.family.feedforward import feedforward
from foretell.textbook.family.norm import normalise
from foretell.textbook.family.weights import Module, check_weights

Stream = list[Vector]  # T vectors (D,)


def decoder_forward(config: ModelConfig, weights: Mapping[str, Matrix], ids: Sequence[int]) -> Matrix:
    """Logits (T, V) of the token after each of ids (T,), in the weights' dtype and without dropout.

    GPT-2's decoder (Radford et al. 2019, section 2.3) and its relatives, as `config` says. Weights that do not fit the
    configuration are a `CheckpointError`, more ids than the context holds a `ContextLengthError`, none at all or one
    outside the vocabulary a `UsageError`.
    """
    check_ids(config, ids)
    check_weights(config, weights)
    model = Module(weights)
    stream = [embed(config, model / "embed", position, token) for position, token in enumerate(ids)]
    for layer in range(config.num_layers):
        stream = block(config, layer, model / f"trunk.blocks.{layer}", stream)
    if config.norm_placement == "pre":
        stream = normalised(config, model / "trunk.norm", stream)
    return np.stack([unembed(config, model, x) for x in stream])  # (T, V)


def check_ids(config: ModelConfig, ids: Sequence[int]) -> None:
    """Refuse ids that the model has no answer for."""
    if len(ids) == 0:
        raise UsageError("there is nothing to predict from: at least one token is needed")
    if len(ids) > config.context_length:
        limit = config.context_length
        raise ContextLengthError(f"{len(ids)} tokens do not fit the model's context of {limit}; give a shorter text")
    for token in ids:
        check_token(token, config.vocab_size)


def embed(config: ModelConfig, module: Module, position: int, token: int) -> Vector:
    """The token's vector (D,), plus its position's where positions are vectors."""
    x = (module / "token")["weight"][token]
    if config.position == "learned":
        return x + (module / "position")["weight"][position]
    if config.position == "sinusoidal":
        return x + sinusoidal_encoding(position, config.width).astype(x.dtype)
    return x


def block(config: ModelConfig, layer: int, module: Module, stream: Stream) -> Stream:
    """Attention, then feed-forward where there is one."""
    attend = partial(attention, config, layer, module / "attention")
    stream = sublayer(config, module / "attention_norm", attend, stream, config.attention_residual)
    if config.feedforward == "none":
        return stream

    def feed(inputs: Stream) -> Stream:
        return [feedforward(config, module / "feedforward", x) for x in inputs]

    return sublayer(config, module / "feedforward_norm", feed, stream, has_residual=True)


def sublayer(
    config: ModelConfig, norm: Module, update: Callable[[Stream], Stream], stream: Stream, has_residual: bool
) -> Stream:
    """x + f(norm(x)), or with the norm behind, norm(x + f(x)); without the residual there is no `x +`."""
    if config.norm_placement == "pre":
        return add(stream, update(normalised(config, norm, stream)), has_residual)
    return normalised(config, norm, add(stream, update(stream), has_residual))


def normalised(config: ModelConfig, norm: Module, stream: Stream) -> Stream:
    """Every vector of the stream under one norm."""
    return [normalise(config, norm, x) for x in stream]


def add(stream: Stream, updates: Stream, has_residual: bool) -> Stream:
    """Stream plus updates, or the updates alone."""
    return [x + update for x, update in zip(stream, updates, strict=True)] if has_residual else updates


def unembed(config: ModelConfig, model: Module, x: Vector) -> Vector:
    """One score (V,) for each token; a tied head reads the embedding's weight (Press and Wolf 2017)."""
    owner = model / "embed.token" if config.tie_embeddings else model / "head"
    scores = owner["weight"] @ x
    return scores + (model / "head")["bias"] if config.bias.head else scores

"""The forward pass of every decoder that `ModelConfig` describes, one vector at a time.

A sequence is a list of vectors, one per token, and logits have one row per token, as in the model. Read
`decoder_forward` first; the functions it calls follow in the order of the pass, then the weights by module path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from foretell.config.model import ModelConfig
from foretell.config.rotary import frequency
from foretell.config.weight_shapes import weight_shapes
from foretell.errors import CheckpointError, ContextLengthError, UsageError, did_you_mean
from foretell.numerics.activations import ACTIVATIONS
from foretell.numerics.norms import NORMS
from foretell.storage.files import open_regular
from foretell.textbook.attention import Matrix, Vector, softmax
from foretell.textbook.transformer import check_token, sinusoidal_encoding

Stream = list[Vector]  # T vectors (D,)


def decoder_forward(config: ModelConfig, weights: Mapping[str, Matrix], ids: Sequence[int]) -> Matrix:
    """Logits (T, V) of the token after each of ids (T,), in the weights' dtype and without dropout.

    GPT-2's decoder (Radford et al. 2019, section 2.3) and its relatives, as `config` describes them. Weights are
    addressed by module path, which is their key on disk (`trunk.blocks.0.attention.query.weight`).

    Raises CheckpointError if the weights do not fit the configuration, ContextLengthError for more ids than the context
    holds, and UsageError for no ids or one outside the vocabulary.
    """
    model, stream = ModuleWeights(weights), decoder_stream(config, weights, ids)
    return np.stack([unembed(config, model, x) for x in stream])  # (T, V)


def decoder_stream(config: ModelConfig, weights: Mapping[str, Matrix], ids: Sequence[int]) -> list[Vector]:
    """The vectors (D,) that the head reads, one for each of ids (T,). Arguments and errors as in `decoder_forward`."""
    check_ids(config, ids)
    check_weights(config, weights)
    model = ModuleWeights(weights)
    stream = [embed(config, model / "embed", position, token) for position, token in enumerate(ids)]
    for layer in range(config.num_layers):
        stream = block(config, layer, model / f"trunk.blocks.{layer}", stream)
    if config.has_final_norm:
        stream = normalise_stream(config, model / "trunk.norm", stream)
    return list(stream)


def check_ids(config: ModelConfig, ids: Sequence[int]) -> None:
    """Raise an error for no ids, for more than the context holds, or for an id outside the vocabulary."""
    if len(ids) == 0:
        raise UsageError("no tokens to predict from: give at least one token")
    if len(ids) > config.context_length:
        limit = config.context_length
        raise ContextLengthError(f"{len(ids)} tokens do not fit the model's context of {limit}; give a shorter text")
    for token in ids:
        check_token(token, config.vocab_size)


def embed(config: ModelConfig, module: ModuleWeights, position: int, token: int) -> Vector:
    """The token's vector (D,), perhaps times sqrt(D), plus the position's if positions are learned or sinusoidal."""
    x = (module / "token")["weight"][token]
    if config.scale_embeddings:
        x = x * np.asarray(math.sqrt(config.width), x.dtype)
    if config.position == "learned":
        return x + (module / "position")["weight"][position]
    if config.position == "sinusoidal":
        return x + sinusoidal_encoding(position, config.width).astype(x.dtype)
    return x


def block(config: ModelConfig, layer: int, module: ModuleWeights, stream: Stream) -> Stream:
    """Attention, then the feed-forward layer if there is one; or both in parallel."""
    attend = partial(attention, config, layer, module / "attention")
    feed = partial(feed_stream, config, module / "feedforward")
    if config.residual != "sequential":
        return parallel_block(config, module, stream, attend, feed)
    stream = sublayer(config, module, "attention", attend, stream, config.attention_residual)
    if config.feedforward == "none":
        return stream
    return sublayer(config, module, "feedforward", feed, stream, has_residual=True)


def parallel_block(
    config: ModelConfig,
    module: ModuleWeights,
    stream: Stream,
    attend: Callable[[Stream], Stream],
    feed: Callable[[Stream], Stream],
) -> Stream:
    """x + attend(norm(x)) + feed(norm(x)): GPT-J (Wang and Komatsuzaki 2021); GPT-NeoX has two norms."""
    first = normalise_stream(config, module / "attention_norm", stream)
    is_shared = config.residual == "parallel_shared_norm"
    second = first if is_shared else normalise_stream(config, module / "feedforward_norm", stream)
    return add(add(stream, attend(first), has_residual=True), feed(second), has_residual=True)


def sublayer(
    config: ModelConfig,
    module: ModuleWeights,
    name: str,
    function: Callable[[Stream], Stream],
    stream: Stream,
    has_residual: bool,
) -> Stream:
    """x + f(norm(x)) for a pre-norm model, norm(x + f(x)) for a post-norm one; without a residual no `x +`.

    Norms may also be of the update: x + norm(f(x)), or x + norm'(f(norm(x))).
    """
    norm, update_norm = module / f"{name}_norm", module / f"{name}_update_norm"
    has_norm_before = config.norm_placement in ("pre", "sandwich")
    update = function(normalise_stream(config, norm, stream) if has_norm_before else stream)
    if config.norm_placement in ("update", "sandwich"):
        update = normalise_stream(config, update_norm, update)
    after = add(stream, update, has_residual)
    return normalise_stream(config, norm, after) if config.norm_placement == "post" else after


def add(stream: Stream, updates: Stream, has_residual: bool) -> Stream:
    """Stream plus updates, or only the updates without a residual."""
    return [x + update for x, update in zip(stream, updates, strict=True)] if has_residual else updates


def normalise_stream(config: ModelConfig, norm: ModuleWeights, stream: Stream) -> Stream:
    """`normalise` of every vector of the stream."""
    return [normalise(config, norm, x) for x in stream]


def normalise(config: ModelConfig, module: ModuleWeights, x: Vector) -> Vector:
    """The configured norm of x (D,), of the query or key of one head (E,), or of all (H E,)."""
    if config.norm == "none":
        return x
    record = NORMS[config.norm]
    bias = module["bias"] if record.has_bias and config.bias.norm else 0.0
    return record.compute(x, module["weight"], bias, config.norm_epsilon)


def attention(config: ModelConfig, layer: int, module: ModuleWeights, stream: Stream) -> Stream:
    """Causal self-attention with H query heads and G key/value heads: T vectors (D,) to T vectors (D,).

    Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023; windows: Beltagy et al. 2020, section 3.1.
    """
    queries = [rotated_heads(config, layer, module, "query", position, x) for position, x in enumerate(stream)]
    keys = np.stack([rotated_heads(config, layer, module, "key", position, x) for position, x in enumerate(stream)])
    values = np.stack([split_heads(config, linear(module / "value", x, config.bias.attention)) for x in stream])
    updates = []
    for position, heads in enumerate(queries):
        visible = visible_positions(position, config.windows[layer])
        mixed = [
            attend_one_query(q, keys[visible, group], values[visible, group], config.query_pre_attn_scalar)
            for q, group in zip(heads, key_heads(config), strict=True)
        ]
        updates.append(join_heads(config, module, np.concatenate(mixed)))
    return updates


def rotated_heads(
    config: ModelConfig, layer: int, module: ModuleWeights, name: str, position: int, x: Vector
) -> Matrix:
    """The query or key heads (H or G, E) of one position: projected, normalised (each or all together), rotated."""
    projected, norm = linear(module / name, x, config.bias.attention), module / f"{name}_norm"
    if config.qk_norm and config.qk_norm_scope == "all_heads":
        projected = normalise(config, norm, projected)
    heads = split_heads(config, projected)
    if config.qk_norm and config.qk_norm_scope == "head":
        heads = np.stack([normalise(config, norm, head) for head in heads])
    if config.position == "rotary":
        heads = np.stack([rotate(config, position, head, config.is_local(layer)) for head in heads])
    return heads


def split_heads(config: ModelConfig, x: Vector) -> Matrix:
    """(H E,) as H rows of E."""
    return x.reshape(-1, config.head_width)


def key_heads(config: ModelConfig) -> list[int]:
    """The key/value head of each query head: H / G neighbouring query heads share one."""
    return [head // (config.num_heads // config.num_kv_heads) for head in range(config.num_heads)]


def visible_positions(position: int, window: int | None) -> slice:
    """The position itself and earlier ones, at most `window` positions in all."""
    first = 0 if window is None else max(0, position - window + 1)
    return slice(first, position + 1)


def attend_one_query(query: Vector, keys: Matrix, values: Matrix, scalar: float | None = None) -> Vector:
    """softmax(q . k_s / sqrt(E)) over the S visible positions, times their values: (E,), (S, E), (S, E) to (E,).

    scalar: a number to divide by the root of, instead of E.
    """
    weights = softmax(keys @ query / math.sqrt(scalar or len(query)))
    return weights @ values


def join_heads(config: ModelConfig, module: ModuleWeights, mixed: Vector) -> Vector:
    """The heads' outputs (H E,), projected to (D,) if the model has an output projection."""
    return linear(module / "output", mixed, config.bias.attention_output) if config.attention_output else mixed


def rotate(config: ModelConfig, position: int, head: Vector, is_local: bool = False) -> Vector:
    """The query or key of one head (E,), each pair of elements rotated by an angle that grows with the position.

    Su et al. 2021, RoFormer, section 3.2. As in Llama's checkpoints, pair i is elements i and i + E/2. Pairs beyond
    `rotary_share` are not rotated (Wang and Komatsuzaki 2021, GPT-J). is_local: by the base of layers with a window.
    """
    angles = np.array([position * frequency(config, pair, is_local) for pair in range(config.head_width // 2)])
    cosine, sine = np.cos(angles).astype(head.dtype), np.sin(angles).astype(head.dtype)
    first, second = np.split(head, 2)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine])


def feedforward(config: ModelConfig, module: ModuleWeights, x: Vector) -> Vector:
    """down(f(up(x))), or gated down(f(gate(x)) * up(x)); x (D,).

    Vaswani et al. 2017, section 3.3; gated: Shazeer 2020, "GLU variants", section 2.
    """
    activation, has_bias = ACTIVATIONS[config.activation].compute, config.bias.feedforward
    up = linear(module / "up", x, has_bias)  # (F,)
    if config.feedforward == "gated":
        return linear(module / "down", activation(linear(module / "gate", x, has_bias)) * up, has_bias)
    return linear(module / "down", activation(up), has_bias)


def feed_stream(config: ModelConfig, module: ModuleWeights, stream: Stream) -> Stream:
    """`feedforward` of every vector of the stream."""
    return [feedforward(config, module, x) for x in stream]


def unembed(config: ModelConfig, model: ModuleWeights, x: Vector) -> Vector:
    """The logits (V,) of x (D,); a tied head uses the embedding's weight (Press and Wolf 2017)."""
    owner = model / "embed.token" if config.tie_embeddings else model / "head"
    logits = owner["weight"] @ x
    return logits + (model / "head")["bias"] if config.bias.head else logits


@dataclass(frozen=True)
class ModuleWeights:
    """The weights below one module path."""

    weights: Mapping[str, Matrix]
    path: str = ""

    def __truediv__(self, name: str) -> ModuleWeights:
        return ModuleWeights(self.weights, f"{self.path}.{name}" if self.path else name)

    def __getitem__(self, name: str) -> Matrix:
        """One of this module's own weights."""
        return self.weights[f"{self.path}.{name}"]


def linear(module: ModuleWeights, x: Vector, has_bias: bool) -> Vector:
    """W x + b, with weight (outputs, inputs) and bias (outputs,)."""
    y = module["weight"] @ x
    return y + module["bias"] if has_bias else y


def check_weights(config: ModelConfig, weights: Mapping[str, Matrix]) -> None:
    """Raise a `CheckpointError` unless the weights are exactly the configuration's."""
    expected = weight_shapes(config)
    for path, shape in expected.items():
        if path not in weights:
            raise CheckpointError(f"weight '{path}' is missing{did_you_mean(path, weights)}")
        if weights[path].shape != shape:
            raise CheckpointError(f"'{path}' has shape {weights[path].shape}, the configuration needs {shape}")
    for path in weights:
        if path not in expected:
            raise CheckpointError(f"the configuration has no weight '{path}'{did_you_mean(path, expected)}")


def load_weights(path: Path) -> dict[str, Matrix]:
    """The weights of a saved model by module path, from its directory or its safetensors file, without torch.

    16-bit floats become float32, which represents each of them exactly. Raises CheckpointError if the file is missing,
    damaged or not a safetensors file, or a tensor is not floating-point.
    """
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        with open_regular(file, follow_links=True) as opened:
            tensors = deserialize(opened.read())
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is damaged or not a safetensors file: {error}") from None
    return {name: _to_array(name, tensor["dtype"], tensor["data"]).reshape(tensor["shape"]) for name, tensor in tensors}


def _to_array(name: str, dtype: str, data: bytes) -> Matrix:
    if dtype not in READERS:
        raise CheckpointError(f"'{name}' holds {dtype}; weights must be floating-point")
    return READERS[dtype](data)


def _from_bfloat16(data: bytes) -> Matrix:
    """float32 from bfloat16, which NumPy lacks: the bits are the upper half of the float32."""
    return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)


READERS: dict[str, Callable[[bytes], Matrix]] = {
    "F64": lambda data: np.frombuffer(data, dtype="<f8"),
    "F32": lambda data: np.frombuffer(data, dtype="<f4"),
    "F16": lambda data: np.frombuffer(data, dtype="<f2").astype(np.float32),
    "BF16": _from_bfloat16,
}

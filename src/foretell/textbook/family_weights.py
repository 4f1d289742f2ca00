"""A decoder's weights by module path: their shapes, their check against a configuration, and reading them from disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from foretell.config import ModelConfig
from foretell.errors import CheckpointError, did_you_mean
from foretell.files import open_regular
from foretell.norms import NORMS
from foretell.textbook.vectors import Matrix, Vector

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ModuleWeights:
    """The weights below one module path."""

    weights: Mapping[str, Matrix]
    path: str = ""

    def __truediv__(self, name: str) -> ModuleWeights:
        """The weights of the submodule `name`."""
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


def weight_shapes(config: ModelConfig) -> Shapes:
    """Every weight of a decoder, path to shape. A tied head has no weight."""
    shapes = {"embed.token.weight": (config.vocab_size, config.width)}
    if config.position == "learned":
        shapes["embed.position.weight"] = (config.context_length, config.width)
    for layer in range(config.num_layers):
        shapes |= _block_shapes(config, f"trunk.blocks.{layer}")
    if config.norm_placement == "pre":
        shapes |= _norm_shapes(config, "trunk.norm", config.width)
    head = _linear_shapes("head", config.vocab_size, config.width, config.bias.head)
    if config.tie_embeddings:
        del head["head.weight"]
    return shapes | head


def _block_shapes(config: ModelConfig, path: str) -> Shapes:
    shapes = _norm_shapes(config, f"{path}.attention_norm", config.width)
    shapes |= _attention_shapes(config, f"{path}.attention")
    if config.feedforward != "none":
        if config.residual != "parallel_shared_norm":
            shapes |= _norm_shapes(config, f"{path}.feedforward_norm", config.width)
        shapes |= _feedforward_shapes(config, f"{path}.feedforward")
    return shapes


def _attention_shapes(config: ModelConfig, path: str) -> Shapes:
    D, E, bias = config.width, config.head_width, config.bias
    shapes = _linear_shapes(f"{path}.query", config.num_heads * E, D, bias.attention)
    shapes |= _linear_shapes(f"{path}.key", config.num_kv_heads * E, D, bias.attention)
    shapes |= _linear_shapes(f"{path}.value", config.num_kv_heads * E, D, bias.attention)
    if config.qk_norm:
        shapes |= _norm_shapes(config, f"{path}.query_norm", E) | _norm_shapes(config, f"{path}.key_norm", E)
    if config.attention_output:
        shapes |= _linear_shapes(f"{path}.output", D, config.num_heads * E, bias.attention_output)
    return shapes


def _feedforward_shapes(config: ModelConfig, path: str) -> Shapes:
    D, F, has_bias = config.width, config.feedforward_width, config.bias.feedforward
    gate = _linear_shapes(f"{path}.gate", F, D, has_bias) if config.feedforward == "gated" else {}
    return gate | _linear_shapes(f"{path}.up", F, D, has_bias) | _linear_shapes(f"{path}.down", D, F, has_bias)


def _norm_shapes(config: ModelConfig, path: str, width: int) -> Shapes:
    if config.norm == "none":
        return {}
    names = ("weight", "bias") if NORMS[config.norm].has_bias and config.bias.norm else ("weight",)
    return {f"{path}.{name}": (width,) for name in names}


def _linear_shapes(path: str, outputs: int, inputs: int, has_bias: bool) -> Shapes:
    weight: Shapes = {f"{path}.weight": (outputs, inputs)}
    return weight | {f"{path}.bias": (outputs,)} if has_bias else weight


def load_weights(path: Path) -> dict[str, Matrix]:
    """The weights of a saved model by module path, from its directory or its safetensors file, without torch.

    16-bit floats become float32, which represents each of them exactly.

    Raises:
        CheckpointError: the file is missing, damaged or not a safetensors file, or a tensor is not floating-point.
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
    """float32 from bfloat16, which NumPy lacks: its bits are the upper half of a float32's."""
    return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)


READERS: dict[str, Callable[[bytes], Matrix]] = {
    "F64": lambda data: np.frombuffer(data, dtype="<f8"),
    "F32": lambda data: np.frombuffer(data, dtype="<f4"),
    "F16": lambda data: np.frombuffer(data, dtype="<f2").astype(np.float32),
    "BF16": _from_bfloat16,
}

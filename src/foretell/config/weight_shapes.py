"""Path and shape of every weight that `ModelConfig` describes, without torch; the modules in `model/` have the same."""

from __future__ import annotations

from math import prod

from foretell.config.model import ModelConfig
from foretell.errors import ConfigError
from foretell.numerics.norms import NORMS

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
MOST_ELEMENTS = 2**61  # float32 in bytes, which torch counts in 64 bits with a sign


def weight_shapes(config: ModelConfig) -> Shapes:
    """Every weight of a decoder, path to shape, in the order of the modules. A tied head has no weight.

    A weight too large for torch is a `ConfigError`.
    """
    shapes = {"embed.token.weight": (config.vocab_size, config.width)}
    if config.position == "learned":
        shapes["embed.position.weight"] = (config.context_length, config.width)
    for layer in range(config.num_layers):
        shapes |= _block_shapes(config, f"trunk.blocks.{layer}")
    if config.has_final_norm:
        shapes |= _norm_shapes(config, "trunk.norm", config.width)
    head = _linear_shapes("head", config.vocab_size, config.width, config.bias.head)
    if config.tie_embeddings:
        del head["head.weight"]
    shapes |= head
    if max(map(prod, shapes.values())) >= MOST_ELEMENTS:
        raise ConfigError(
            f"width {config.width}, head_width {config.head_width}: weights this large exceed torch's limits"
        )
    return shapes


def count_parameters(config: ModelConfig) -> int:
    """Number of parameters of a decoder, a tied head counted once."""
    one_layer = weight_shapes(config.replaced(num_layers=1, window=None))
    layers = {path: config.num_layers if path.startswith("trunk.blocks.") else 1 for path in one_layer}
    return sum(layers[path] * prod(shape) for path, shape in one_layer.items())


def _block_shapes(config: ModelConfig, path: str) -> Shapes:
    shapes = {}
    for name, layers in (("attention", _attention_shapes), ("feedforward", _feedforward_shapes)):
        is_first = name == "attention"
        if not is_first and config.feedforward == "none":
            continue
        if config.norm_placement != "update" and (is_first or config.residual != "parallel_shared_norm"):
            shapes |= _norm_shapes(config, f"{path}.{name}_norm", config.width)
        shapes |= layers(config, f"{path}.{name}")
        if config.norm_placement in ("update", "sandwich"):
            shapes |= _norm_shapes(config, f"{path}.{name}_update_norm", config.width)
    return shapes


def _attention_shapes(config: ModelConfig, path: str) -> Shapes:
    D, E, bias, has_all = config.width, config.head_width, config.bias, config.qk_norm_scope == "all_heads"
    shapes = _linear_shapes(f"{path}.query", config.num_heads * E, D, bias.attention)
    shapes |= _linear_shapes(f"{path}.key", config.num_kv_heads * E, D, bias.attention)
    shapes |= _linear_shapes(f"{path}.value", config.num_kv_heads * E, D, bias.attention)
    if config.qk_norm:
        for name, heads in (("query", config.num_heads), ("key", config.num_kv_heads)):
            shapes |= _norm_shapes(config, f"{path}.{name}_norm", E * heads if has_all else E)
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

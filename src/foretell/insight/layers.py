"""The values of a layer, by what its classes declare: stream, updates, attention weights and neurons."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from foretell.errors import UsageError
from foretell.model.decoder import Decoder
from foretell.model.description import UNKNOWN_FORMULA
from foretell.model.quantized_linear import QuantizedLinear
from foretell.model.structure import Structure, Value
from foretell.numerics.norms import NORMS

POSITION_WISE = ("linear", "gated linear")  # formulas of the last layer of a feed-forward layer
OF_NEURONS = ("B", "T", "F")
NORM_FORMULAS = tuple(norm.formula for norm in NORMS.values())
UPDATES = ("residual", "replacement")  # formulas of values that read the stream and an update


def stream_path(structure: Structure, layer: int) -> list[Value]:
    """The successive values of the stream in a layer, in the order of the pass.

    They are the stream after each update and, in post-norm models, the output of each norm. An undeclared layer has
    only its output.
    """
    start, name = structure.stream[layer : layer + 2]
    path = []
    while name != start and name in structure.values:
        value = structure[name]
        if value.formula:
            path.append(value)
        name = value.reads[0] if value.reads else start
    return path[::-1]


def updates_of(decoder: Decoder, structure: Structure, layer: int) -> list[Value]:
    """The values of a layer that add an update to the stream, or replace the stream by it.

    Raises `UsageError`, naming path and class, if the layer's class does not declare any.
    """
    updates = [value for value in stream_path(structure, layer) if value.formula in UPDATES]
    if not updates:
        block = structure.stream[layer + 1]
        kind = type(decoder.get_submodule(block)).__name__
        raise UsageError(f"{block} is a {kind}, which does not declare what it adds to the residual stream")
    return updates


def sublayer_of(structure: Structure, update: Value) -> str:
    """The name of the sublayer whose output, or its norm, is added to the stream or replaces it."""
    name = update.reads[1]
    return structure[name].reads[0] if structure[name].formula in NORM_FORMULAS else name


def weights_of(decoder: Decoder, structure: Structure, layer: int) -> Value:
    """The attention weights (B, H, T, S) of a layer, before dropout.

    Raises `UsageError`, naming path and class, if no module of the layer declares any.
    """
    block = structure.stream[layer + 1]
    weights = structure.with_formula("attention weight", f"{block}.")
    if weights:
        return weights[0]
    unknown = [value.module for value in structure.with_formula(UNKNOWN_FORMULA, block) if value.reads]
    path = (*unknown, block)[0]
    kind = type(decoder.get_submodule(path)).__name__
    raise UsageError(f"{path} is a {kind}, which declares no attention weights")


def memory_weights_of(structure: Structure, layer: int) -> Value | None:
    """The weights (B, H, T, S) with which a layer attends to the memory; None if it does not."""
    weights = structure.with_formula("attention weight", f"{structure.stream[layer + 1]}.")
    return next((value for value in weights if structure.memory_axes(value.name)), None)


def encoder_weights(structure: Structure) -> list[Value]:
    """The attention weights (B, H, S, S) of each layer of the encoder; none for a model without one."""
    if not structure.memory:
        return []
    by_block = (structure.with_formula("attention weight", f"{block}.") for block in structure.memory_stream[1:])
    return [weights[0] for weights in by_block if weights]


@dataclass(frozen=True, eq=False)
class Neurons:
    """The feed-forward layer of a block, with F neurons.

    values: the names of the recorded numbers of the neurons, (T, F) each. factors: those whose product is multiplied by
    the weight (D, F) of `down`. update: the name of the layer's output.
    """

    values: list[str]
    factors: tuple[str, ...]
    down: nn.Linear | QuantizedLinear
    update: str


def neurons_of(decoder: Decoder, structure: Structure, layer: int) -> Neurons | None:
    """None for a block without a feed-forward layer, or with one whose neurons are not declared."""
    inside = f"{structure.stream[layer + 1]}."
    values = [name for name, value in structure.values.items() if name.startswith(inside) and value.dims == OF_NEURONS]
    for update in updates_of(decoder, structure, layer):
        sublayer = sublayer_of(structure, update)
        output = structure[structure.origin(sublayer)]
        down = decoder.get_submodule(output.module)
        reads_neurons = output.formula in POSITION_WISE and set(output.reads) <= set(values)
        if reads_neurons and isinstance(down, nn.Linear | QuantizedLinear):
            return Neurons(values, output.reads, down, sublayer)
    return None

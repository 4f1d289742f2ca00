"""The neurons of a feed-forward layer, by what its classes declare."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from foretell.insight.recording import updates_of
from foretell.model.decoder import Decoder
from foretell.model.quantized_linear import QuantizedLinear
from foretell.model.structure import Structure

POSITION_WISE = ("linear", "gated linear")  # formulas of the last layer of a feed-forward layer
OF_NEURONS = ("B", "T", "F")


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
        output = structure[structure.origin(update.reads[1])]
        down = decoder.get_submodule(output.module)
        reads_neurons = output.formula in POSITION_WISE and set(output.reads) <= set(values)
        if reads_neurons and isinstance(down, nn.Linear | QuantizedLinear):
            return Neurons(values, output.reads, down, update.reads[1])
    return None

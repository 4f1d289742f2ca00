"""Explanations of a neuron of a feed-forward layer: the vector that it adds to the stream, and its contributions.

`<block>.neurons.written[t,f,d]`: the vector of neuron f at position t. `.vector_norm[t,f]`: its norm.
`.vector[t,f,d]`: the vector after the last norm, with the pass's statistics. `.contributions[t,f,v]`: the contribution
to the logit of token v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from foretell.errors import UsageError
from foretell.insight.address import Dimensions, address_of
from foretell.insight.contributions import terms_of_head
from foretell.insight.explain.contribution_steps import after_norms, dot_product
from foretell.insight.explain.explanation import Explained, NumberGroup, NumberKind
from foretell.insight.explain.steps import DIGITS, Listing, Working, equals, factor, written
from foretell.insight.layers import Neurons, neurons_of
from foretell.insight.readout import LogitReadout
from foretell.insight.recorded_pass import Array, RecordedPass, to_array
from foretell.insight.stream_terms import Term
from foretell.language_model import LanguageModel
from foretell.model.structure import Structure
from foretell.typesetting.expression import Expression, Number, Root

NEURONS = ".neurons."
KINDS: dict[str, Dimensions] = {
    "written": ("position", "neuron", "element"),
    "vector_norm": ("position", "neuron"),
    "vector": ("position", "neuron", "element"),
    "contributions": ("position", "neuron", "token"),
}
AFTER_NORMS = ("vector", "contributions")  # need the terms of the stream


class NeuronNumbers(NumberGroup):
    """The numbers of the neurons of each block that declares any."""

    def __init__(self, model: LanguageModel, structure: Structure):
        self.decoder, self.structure = model.decoder, structure
        self.neurons: dict[str, Neurons] = {}
        for layer, block in enumerate(structure.stream[1:]):
            if neurons := neurons_of(model.decoder, structure, layer):
                self.neurons[f"{block}{NEURONS}"] = neurons
        self.names = [f"{prefix}{kind}" for prefix in self.neurons for kind in KINDS]

    @cached_property
    def stream(self) -> Term:
        return terms_of_head(self.decoder, self.structure)

    def needs(self, name: str) -> Sequence[str]:
        prefix, kind = split(name)
        return [*self.neurons[prefix].values, *(self.stream.names() if kind in AFTER_NORMS else [])]

    def kind(self, recording: RecordedPass, name: str) -> NumberKind:
        (prefix, kind), config = split(name), recording.config
        neurons, written = self.neurons[prefix], f"{prefix}written"
        sizes = {"position": len(recording.ids), "neuron": neurons.down.in_features}
        sizes |= {"element": config.width, "token": config.vocab_size}

        def explain(index: tuple[int, ...]) -> Explained:
            neuron = NeuronExplainer(recording, neurons, index)
            if kind not in AFTER_NORMS:
                return neuron.written(index[2]) if kind == "written" else neuron.vector_norm()
            _, *norms = trail_of(self.stream, neurons)
            element = index[2] if kind == "vector" else 0
            source = address_of(written, *index[:2], ":")
            steps, after = after_norms(recording.trace, norms, index[0], neuron.vector, source, element)
            if kind == "vector":
                vector = torch.from_numpy(neuron.vector)[None]  # (1, D)
                stored = float(self.stream.carry(neurons.update, vector, recording.trace, index[0])[0, element])
                scale = 8 * float(np.abs(neuron.vector).max() + abs(stored))
                return stored, Working(steps, float(after[element]), scale)
            source = address_of(f"{prefix}vector", *index[:2], ":")
            working = dot_product(LogitReadout(recording), (index[0], index[2]), source, after)
            return working.value, working

        dtype = torch.float32 if kind == "vector_norm" else torch.float64
        return NumberKind(KINDS[kind], [sizes[dimension] for dimension in KINDS[kind]], explain, dtype)


def split(name: str) -> tuple[str, str]:
    """`trunk.blocks.3.neurons.` and `written`."""
    block, _, kind = name.partition(NEURONS)
    return f"{block}{NEURONS}", kind


def trail_of(stream: Term, neurons: Neurons) -> list[Term]:
    if not (trail := stream.trail(neurons.update)):
        raise UsageError(f"{neurons.update} is not part of the stream that the head reads")
    return trail


class NeuronExplainer:
    """A neuron at a position: the product of its factors times a column (D,) of the down projection."""

    def __init__(self, recording: RecordedPass, neurons: Neurons, index: tuple[int, ...]):
        self.position, self.neuron, *_ = index
        modules = recording.model.decoder.named_modules()
        self.weight = next(f"{path}.weight" for path, module in modules if module is neurons.down)
        self.factors = {name: float(recording.array(name)[self.position, self.neuron]) for name in neurons.factors}
        self.product = math.prod(self.factors.values())
        self.column: Array = to_array(neurons.down.weight[:, self.neuron])
        self.vector: Array = self.column * self.product

    @property
    def operands(self) -> dict[str, str]:
        """The addresses of the factors, by the symbols of `terms`."""
        symbols = zip("ab", self.factors, strict=False)
        return {symbol: address_of(name, self.position, self.neuron) for symbol, name in symbols}

    def terms(self) -> list[str | float | Expression]:
        """`0.5 · 2.0`: the factors as numbers."""
        first, *others = self.factors.values()
        return [factor(first), *(part for other in others for part in ("·", factor(other)))]

    def written(self, element: int) -> tuple[float, Working]:
        """An element of the neuron's vector: w times the factors."""
        w = float(self.column[element])
        operands = {"w": address_of(self.weight, element, self.neuron), **self.operands}
        value = w * self.product
        equation = equals(value, "y =", factor(w), "·", *self.terms(), operands=operands)
        return float(self.vector[element]), Working([equation], value, 2 * abs(value))

    def vector_norm(self) -> tuple[float, Working]:
        """The product of the factors times the norm of the column."""
        columns = {"element": range(len(self.column)), "w": self.column, "w²": self.column**2}
        listing = Listing("", columns, ("w²",), operands={"w": f"{self.weight}[:,{self.neuron}]"})
        norm = math.sqrt(listing.sums["w²"])
        root = Root(Number(listing.sums["w²"], DIGITS))
        value = abs(self.product) * norm
        note = "the norm of w, times the size of " + " · ".join(self.operands)
        equation = equals(value, "norm =", root, "· |", written(*self.terms()), "|", note=note, operands=self.operands)
        # Stored in float32, as in the page's list of the strongest neurons
        size = torch.tensor(list(self.factors.values())).float().prod().abs()
        stored = float(size * torch.from_numpy(self.column).float().norm())
        return stored, Working([listing, equation], value, value * 4)

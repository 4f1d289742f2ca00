"""Explanations of a neuron of a feed-forward layer: the vector that it adds to the stream, and its contributions.

`<block>.neurons.written[t,f,d]`: the vector of neuron f at position t. `.vector_norm[t,f]`: its norm.
`.vector[t,f,d]`: the vector after the last norm, with the pass's statistics. `.contributions[t,f,v]`: the contribution
to the logit of token v.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from foretell.errors import UsageError
from foretell.insight.address import Address, Dimensions, address_of
from foretell.insight.contributions import terms_of_head
from foretell.insight.explain.contribution_steps import after_norms, dot_product
from foretell.insight.explain.explanation import Explained, Explanation, NumberKind, explain_number
from foretell.insight.explain.steps import DIGITS, Listing, Working, equals, factor, written
from foretell.insight.layers import Neurons, neurons_of
from foretell.insight.readout import LogitReadout
from foretell.insight.recorded_pass import Array, RecordedPass, record, to_array
from foretell.language_model import LanguageModel
from foretell.model.structure import model_structure
from foretell.paths import suggest
from foretell.typesetting.expression import Expression, Number, Root

NEURONS = ".neurons."
KINDS: dict[str, Dimensions] = {
    "written": ("position", "neuron", "element"),
    "vector_norm": ("position", "neuron"),
    "vector": ("position", "neuron", "element"),
    "contributions": ("position", "neuron", "token"),
}


def explain_neuron(model: LanguageModel, text: str | list[int], wanted: Address) -> Explanation:
    """Explain a number of a neuron. Raises `UsageError` for an unknown name or index, and a block without neurons."""
    block, _, kind = wanted.name.partition(NEURONS)
    if kind not in KINDS:
        names = [f"{block}{NEURONS}{known}" for known in KINDS]
        raise UsageError(f"no value is named '{wanted.name}'{suggest(wanted.name, names)}")
    structure = model_structure(model.decoder)
    neurons = neurons_of(model.decoder, structure, structure.stream.index(block) - 1)
    if neurons is None:
        raise UsageError(f"the classes of {block} declare no neurons")
    stream = None
    if kind in ("vector", "contributions"):
        stream = terms_of_head(model.decoder, structure)
    recording = record(model, text, [*neurons.values, *(stream.names() if stream else [])])
    sizes = {"position": len(recording.ids), "neuron": neurons.down.in_features}
    sizes |= {"element": model.decoder.config.width, "token": model.decoder.config.vocab_size}

    def explain(index: tuple[int, ...]) -> Explained:
        neuron = NeuronExplainer(recording, neurons, index)
        if stream is None:
            return neuron.written(index[2]) if kind == "written" else neuron.vector_norm()
        if not (trail := stream.trail(neurons.update)):
            raise UsageError(f"{neurons.update} is not part of the stream that the head reads")
        _, *norms = trail
        source = address_of(f"{block}{NEURONS}written", *index[:2], ":")
        element = index[2] if kind == "vector" else 0
        steps, after = after_norms(recording.trace, norms, index[0], neuron.vector, source, element)
        if kind == "vector":
            vector = torch.from_numpy(neuron.vector)[None]  # (1, D)
            stored = float(stream.carry(neurons.update, vector, recording.trace, index[0])[0, element])
            return stored, Working(steps, float(after[element]), 8 * float(np.abs(neuron.vector).max() + abs(stored)))
        source = address_of(f"{block}{NEURONS}vector", *index[:2], ":")
        working = dot_product(LogitReadout(recording), (index[0], index[2]), source, after)
        return working.value, working

    dimensions = KINDS[kind]
    dtype = torch.float32 if kind == "vector_norm" else torch.float64
    numbers = NumberKind(dimensions, tuple(sizes[name] for name in dimensions), explain, dtype)
    return explain_number(recording, {wanted.name: numbers}, wanted, {})


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

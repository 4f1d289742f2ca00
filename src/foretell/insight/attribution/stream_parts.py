"""The stream at one position as a sum of parts: the embeddings, and the output of each head and feed-forward layer.

A norm with frozen statistics is linear, so it can be applied to each part separately. The parts are found by following
what each value reads, back from the value that the head reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeGuard

import torch
from torch import Tensor, nn

from foretell.errors import UsageError
from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.model.norm import Norm
from foretell.model.quantized_linear import QuantizedLinear
from foretell.model.structure import Structure, Value


@dataclass
class StreamParts:
    """Named vectors (D,) in float64 that add up to the stream."""

    names: list[str] = field(default_factory=list)
    vectors: list[Tensor] = field(default_factory=list)

    def add(self, name: str, vector: Tensor | None) -> None:
        """Add a part, unless it is None."""
        if vector is not None:
            self.names.append(name)
            self.vectors.append(vector.detach().double())

    def stacked(self) -> Tensor:
        """All parts as one tensor, (N, D)."""
        return torch.stack(self.vectors)


class Term(ABC):
    """A term of the stream, which consists of one or more parts."""

    @abstractmethod
    def names(self) -> list[str]:
        """The values that must be recorded."""

    @abstractmethod
    def parts(self, trace: Trace, at: int) -> StreamParts:
        """The parts at position `at` of the traced pass."""


@dataclass(frozen=True)
class Part(Term):
    """A value that is one part; `like` names a value whose precision it is rounded to first."""

    name: str
    like: str = ""

    def names(self) -> list[str]:
        return [self.name, *([self.like] if self.like else [])]

    def parts(self, trace: Trace, at: int) -> StreamParts:
        vector = trace[self.name][0, at]
        return StreamParts(
            [self.name], [(vector.to(trace[self.like].dtype) if self.like else vector).detach().double()]
        )


@dataclass(frozen=True)
class HeadOutputs(Term):
    """The output of attention: one part per head, and the bias of the output projection."""

    core: str
    path: str
    projection: nn.Module

    def names(self) -> list[str]:
        return [self.core]

    def parts(self, trace: Trace, at: int) -> StreamParts:
        heads = trace[self.core][0, :, at].double()  # (H, E)
        weight, bias = self.projection_weights(heads.numel(), heads.device)
        updates = torch.einsum("dhe,he->hd", weight.unflatten(1, heads.shape), heads)  # (H, D)
        parts = StreamParts()
        for head, update in enumerate(updates):
            parts.add(f"{self.core}[{head}]", update)
        parts.add(f"{self.path}.bias", bias)
        return parts

    def projection_weights(self, width: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """The matrix (D, H*E) that the heads are multiplied by, and its bias; where there is none, the identity."""
        if isinstance(self.projection, nn.Linear | QuantizedLinear):
            return self.projection.weight.detach().double(), self.projection.bias
        return torch.eye(width, dtype=torch.float64, device=device), None


@dataclass(frozen=True)
class SourceOutputs(HeadOutputs):
    """The output of attention by head and source: what a head reads at each token (weight times value) is a part.

    A part is called `core[head]@source`; the parts of a head add up to its output.
    """

    def names(self) -> list[str]:
        return [f"{self.core}.weights", f"{self.core}.value"]

    def parts(self, trace: Trace, at: int) -> StreamParts:
        weights = trace[f"{self.core}.weights"][0, :, at].double()  # (H, S)
        values = trace[f"{self.core}.value"][0].double()  # (G, S, E)
        values = values.repeat_interleave(len(weights) // len(values), dim=0)  # (H, S, E)
        weight, bias = self.projection_weights(weights.shape[0] * values.shape[-1], values.device)
        read = weights[..., None] * values  # (H, S, E)
        updates = torch.einsum("dhe,hse->hsd", weight.unflatten(1, (len(weights), -1)), read)  # (H, S, D)
        parts = StreamParts()
        for head, sources in enumerate(updates):
            for source, update in enumerate(sources):
                parts.add(f"{self.core}[{head}]@{source}", update)
        parts.add(f"{self.path}.bias", bias)
        return parts


@dataclass(frozen=True)
class Sum(Term):
    """The sum of two terms."""

    first: Term
    second: Term

    def names(self) -> list[str]:
        return [*self.first.names(), *self.second.names()]

    def parts(self, trace: Trace, at: int) -> StreamParts:
        first, second = self.first.parts(trace, at), self.second.parts(trace, at)
        return StreamParts([*first.names, *second.names], [*first.vectors, *second.vectors])


@dataclass(frozen=True)
class Normalized(Term):
    """A term after a norm with the statistics of the pass; the norm's shift is a part."""

    term: Term
    path: str
    norm: Norm
    statistics: tuple[str, ...]

    def names(self) -> list[str]:
        return [*self.term.names(), *(f"{self.path}.{name}" for name in self.statistics)]

    def parts(self, trace: Trace, at: int) -> StreamParts:
        parts = self.term.parts(trace, at)
        frozen = self.norm.frozen({name: trace[f"{self.path}.{name}"][0, at] for name in self.statistics})
        after = StreamParts(parts.names, list(frozen(parts.stacked())))
        after.add(f"{self.path}.bias", frozen.shift)
        return after


class StreamDecomposition:
    """Finds the terms that a value of the stream consists of; `attention` decides how attention is divided."""

    def __init__(self, decoder: Decoder, structure: Structure, attention: type[HeadOutputs] = HeadOutputs):
        self.decoder, self.structure, self.attention = decoder, structure, attention
        self.by_formula: dict[str, Callable[[Value], Term]] = {
            "": lambda value: self.stream(value.reads[0]),
            "identity": lambda value: self.stream(value.reads[0]),
            "residual": lambda value: Sum(self.stream(value.reads[0]), self.update(value.reads[1])),
            "replacement": lambda value: self.update(value.reads[1]),
            "token plus position": self._embedding,
        }

    def stream(self, name: str) -> Term:
        """The terms of a value of the stream itself. Raises `UsageError`, naming path and class, if it has none."""
        value = self.structure[name]
        if value.formula in self.by_formula:
            return self.by_formula[value.formula](value)
        module = self.decoder.get_submodule(value.module)
        if is_norm(module) and len(value.reads) == 1:
            return Normalized(self.stream(value.reads[0]), name, module, self._statistics(value))
        if any(read in self.structure.values for read in value.reads):
            raise UsageError(
                f"{name} is a {type(module).__name__}, which does not declare how it splits the stream into parts: "
                "a norm needs a method `frozen`, a block the value that it returns"
            )
        return Part(name)  # it reads tokens or positions

    def update(self, name: str) -> Term:
        """The terms of an update of the stream: those of attention are its heads, any other update is one part."""
        inner = name
        while not self.structure[inner].formula and self.structure[inner].reads:
            inner = self.structure[inner].reads[0]
        value = self.structure[inner]
        module = self.decoder.get_submodule(value.module)
        if value.formula in ("linear", "identity") and self.structure[value.reads[0]].formula == "attention":
            return self.attention(value.reads[0], inner, module)
        if is_norm(module) and len(value.reads) == 1:  # a norm of the update, before it is added
            return Normalized(self.update(value.reads[0]), inner, module, self._statistics(value))
        return Part(name)

    def _statistics(self, value: Value) -> tuple[str, ...]:
        return tuple(self.structure.descriptions[value.module].derived)

    def _embedding(self, value: Value) -> Term:
        """Token and position vectors; sinusoids are computed in float64 and rounded when they are added."""
        token, position = value.reads
        return Sum(Part(token), Part(position, like=token))


def is_norm(module: object) -> TypeGuard[Norm]:
    """True for a module with a method `frozen`."""
    return isinstance(module, Norm)

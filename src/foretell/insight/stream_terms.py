"""The residual stream as a sum of terms: embeddings, head outputs, updates, and norms with the pass's statistics.

The parts are found by tracing inputs back from the value that the head reads. Norms are frozen: with the statistics of
the pass they are linear, so they can be applied to each part separately.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from foretell.errors import UsageError
from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.model.norm import FrozenNorm, Norm
from foretell.model.quantized_linear import QuantizedLinear
from foretell.model.structure import Structure, Value

NamedVectors = list[tuple[str, Tensor]]  # names and vectors (D,) in float64 that add up to the stream


Positions = int | slice  # one position, or P positions with vectors (P, D)


class Term(ABC):
    """A term of the stream with one or more parts."""

    @abstractmethod
    def names(self) -> list[str]:
        """The values that must be recorded."""

    @abstractmethod
    def parts(self, trace: Trace, at: Positions) -> NamedVectors:
        """The parts at position `at` of the traced pass; biases are (D,) for any positions."""

    @abstractmethod
    def trail(self, name: str) -> list[Term]:
        """The term that contributes the part `name`, then the norms after it in this term; empty if it is not here."""

    def carry(self, name: str, vectors: Tensor, trace: Trace, at: Positions) -> Tensor:
        """Apply this term's norms to vectors (N, D) or (N, P, D) of the part `name`; zeros if it is not here."""
        trail = self.trail(name)
        if not trail:
            return torch.zeros_like(vectors)
        _, *norms = trail
        for norm in norms:
            assert isinstance(norm, Normalized), "a part passes norms"
            vectors = norm.frozen(trace, at)(vectors)
        return vectors

    @abstractmethod
    def by_token(self, trace: Trace, at: slice, directions: Tensor) -> Tensor:
        """The dot products (N, C, T) of N parts with C directions (C, P, D), by the token that they come from.

        For a head this is the token that it reads, for other parts the token at which they are added. The values of
        `names_by_token` must be recorded.
        """

    def stacked(self, trace: Trace, at: Positions) -> tuple[list[str], Tensor]:
        """The names of the N parts, and their vectors (N, D) or (N, P, D)."""
        names, vectors = zip(*self.parts(trace, at), strict=True)
        return list(names), torch.stack(torch.broadcast_tensors(*vectors))


def names_by_token(stream: Term, structure: Structure) -> list[str]:
    """The values that `Term.by_token` reads."""
    cores = [name for name in stream.names() if structure[name].formula == "attention"]
    return [*stream.names(), *(f"{core}.{name}" for core in cores for name in ("weights", "value"))]


@dataclass(frozen=True)
class RecordedPart(Term):
    """A recorded value as one part. like: the name of a value to whose precision it is rounded first."""

    name: str
    like: str = ""

    def names(self) -> list[str]:
        return [self.name, *([self.like] if self.like else [])]

    def parts(self, trace: Trace, at: Positions) -> NamedVectors:
        vector = trace[self.name][0, at]
        return [(self.name, (vector.to(trace[self.like].dtype) if self.like else vector).double())]

    def trail(self, name: str) -> list[Term]:
        return [self] if name == self.name else []

    def by_token(self, trace: Trace, at: slice, directions: Tensor) -> Tensor:
        ((_, vectors),) = self.parts(trace, at)
        return added_there((directions * vectors).sum(-1), at, trace[self.name].shape[1])[None]


@dataclass(frozen=True)
class HeadOutputs(Term):
    """The output of attention: one part per head, and the bias of the output projection."""

    core: str
    path: str
    projection: nn.Module

    def names(self) -> list[str]:
        return [self.core]

    def parts(self, trace: Trace, at: Positions) -> NamedVectors:
        heads = trace[self.core][0, :, at].double()  # (H, E)
        sizes = (heads.shape[0], heads.shape[-1])
        weight, bias = self.projection_weights(math.prod(sizes), heads.device)
        updates = torch.einsum("dhe,h...e->h...d", weight.unflatten(1, sizes), heads)  # (H, D)
        return [*((f"{self.core}[{head}]", update) for head, update in enumerate(updates)), *bias]

    def trail(self, name: str) -> list[Term]:
        return [self] if name.startswith(f"{self.core}[") or name == f"{self.path}.bias" else []

    def projection_weights(self, width: int, device: torch.device) -> tuple[Tensor, NamedVectors]:
        """The output projection's matrix (D, H*E), or the identity, and its bias if there is one."""
        if not isinstance(self.projection, nn.Linear | QuantizedLinear):
            return torch.eye(width, dtype=torch.float64, device=device), []
        return self.projection.weight.detach().double(), optional_part(f"{self.path}.bias", self.projection.bias)

    def by_token(self, trace: Trace, at: slice, directions: Tensor) -> Tensor:
        """A head reads weight times value at each token, scaled to its recorded output, which may have been changed."""
        reads = self.reads(trace, at, directions)
        sources = torch.einsum("cphe,hse,hps->hcs", reads.inside, reads.values, reads.weights * reads.factor)
        rest = torch.einsum("cphe,hpe->hcp", reads.inside, reads.rest)
        _, bias = self.projection_weights(math.prod(reads.inside.shape[-2:]), directions.device)
        heads = sources + added_there(rest, at, sources.shape[-1])
        return torch.cat([heads, *(added_there(directions @ vector, at, heads.shape[-1])[None] for _, vector in bias)])

    def reads(self, trace: Trace, at: slice, directions: Tensor) -> HeadReads:
        """The weights and values of the heads at P positions, and C directions (C, P, D) before the projection."""
        output, weights = trace[self.core][0].double(), trace[f"{self.core}.weights"][0].double()
        output, weights = output[:, at], weights[:, at]  # (H, P, E), (H, P, S)
        values = trace[f"{self.core}.value"][0].double()  # (G, S, E)
        values = values.repeat_interleave(len(weights) // len(values), dim=0)  # (H, S, E)
        read = weights @ values  # (H, P, E)
        factor = (output * read).sum(-1, keepdim=True) / read.square().sum(-1, keepdim=True).clamp(min=TINY)
        matrix, _ = self.projection_weights(output.shape[0] * output.shape[-1], output.device)
        inside = (directions @ matrix).unflatten(-1, (len(output), -1))  # (C, P, H, E)
        return HeadReads(weights, values, factor, output - factor * read, inside)


@dataclass(frozen=True, eq=False)
class HeadReads:
    """The weights (H, P, S) and values (H, S, E) of heads, and directions inside them (C, P, H, E).

    factor (H, P, 1) scales the weighted values to add up to the recorded output, apart from the rest (H, P, E).
    """

    weights: Tensor
    values: Tensor
    factor: Tensor
    rest: Tensor
    inside: Tensor

    def from_token(self, head: int, token: int) -> Tensor:
        """The products (P,) of the first direction with what each position reads from a token."""
        return (self.inside[0, :, head] @ self.values[head, token]) * (self.weights * self.factor)[head, :, token]

    def rests(self, head: int) -> Tensor:
        """The products (P,) of the first direction with the rest at each position."""
        return torch.linalg.vecdot(self.inside[0, :, head], self.rest[head])


TINY = 1e-300  # avoids 0 / 0 for a head that reads only zeros


def added_there(values: Tensor, at: slice, length: int) -> Tensor:
    """Place numbers (..., P) of P positions into zeros for a whole text, (..., T)."""
    placed = values.new_zeros(*values.shape[:-1], length)
    placed[..., at] = values
    return placed


def optional_part(name: str, vector: Tensor | None) -> NamedVectors:
    return [] if vector is None else [(name, vector.detach().double())]


@dataclass(frozen=True)
class Sum(Term):
    first: Term
    second: Term

    def names(self) -> list[str]:
        return [*self.first.names(), *self.second.names()]

    def parts(self, trace: Trace, at: Positions) -> NamedVectors:
        return [*self.first.parts(trace, at), *self.second.parts(trace, at)]

    def trail(self, name: str) -> list[Term]:
        return self.first.trail(name) or self.second.trail(name)

    def by_token(self, trace: Trace, at: slice, directions: Tensor) -> Tensor:
        return torch.cat([term.by_token(trace, at, directions) for term in (self.first, self.second)])


@dataclass(frozen=True)
class Normalized(Term):
    """A term after a norm with the pass's statistics; the norm's shift is a part."""

    term: Term
    path: str
    norm: Norm
    statistics: tuple[str, ...]

    def names(self) -> list[str]:
        return [*self.term.names(), *(f"{self.path}.{name}" for name in self.statistics)]

    def parts(self, trace: Trace, at: Positions) -> NamedVectors:
        names, vectors = self.term.stacked(trace, at)
        frozen = self.frozen(trace, at)
        return [*zip(names, frozen(vectors), strict=True), *optional_part(f"{self.path}.bias", frozen.shift)]

    def trail(self, name: str) -> list[Term]:
        inner = self.term.trail(name)
        return [*inner, self] if inner or name == f"{self.path}.bias" else []

    def by_token(self, trace: Trace, at: slice, directions: Tensor) -> Tensor:
        inner, shift = self.term.by_token(trace, at, self.back(trace, at, directions)), self.frozen(trace, at).shift
        if shift is None:
            return inner
        return torch.cat([inner, added_there(directions @ shift.double(), at, inner.shape[-1])[None]])

    def back(self, trace: Trace, at: slice, directions: Tensor) -> Tensor:
        """Directions (C, P, D) whose products with vectors before the norm equal those after it."""
        frozen = self.frozen(trace, at)
        scaled = directions * frozen.scale
        return scaled - scaled.mean(-1, keepdim=True) if frozen.centers else scaled

    def frozen(self, trace: Trace, at: Positions) -> FrozenNorm:
        return self.norm.frozen({name: trace[f"{self.path}.{name}"][0, at] for name in self.statistics})


class StreamDecomposition:
    """Finds the terms of a value of the stream. A value in `replaced` is one term."""

    def __init__(self, decoder: Decoder, structure: Structure, replaced: Collection[str] = ()):
        self.decoder, self.structure, self.replaced = decoder, structure, replaced
        self.by_formula: dict[str, Callable[[Value], Term]] = {
            "": lambda value: self.stream(value.reads[0]),
            "identity": lambda value: self.stream(value.reads[0]),
            "residual": lambda value: Sum(self.stream(value.reads[0]), self.update(value.reads[1])),
            "replacement": lambda value: self.update(value.reads[1]),
            "token plus position": self._embedding,
        }

    def stream(self, name: str) -> Term:
        """The terms of a value of the stream. Raises `UsageError`, naming path and class, if they are not declared."""
        value = self.structure[name]
        if name in self.replaced:
            return RecordedPart(name)
        if value.formula in self.by_formula:
            return self.by_formula[value.formula](value)
        module = self.decoder.get_submodule(value.module)
        if is_norm(module) and len(value.reads) == 1:
            return Normalized(self.stream(value.reads[0]), name, module, self._statistics(value))
        if any(read in self.structure.values for read in value.reads):
            raise UsageError(
                f"{name} is a {type(module).__name__}, which does not declare the terms of its output: "
                "a norm needs a method `frozen`, a block the value that it returns"
            )
        return RecordedPart(name)  # reads tokens or positions

    def update(self, name: str) -> Term:
        """The terms of an update of the stream: one per head for attention; any other update is one part."""
        inner = name
        while inner not in self.replaced and not self.structure[inner].formula and self.structure[inner].reads:
            inner = self.structure[inner].reads[0]
        if inner in self.replaced:
            return RecordedPart(name)
        value = self.structure[inner]
        module = self.decoder.get_submodule(value.module)
        if value.formula in ("linear", "identity") and self.structure[value.reads[0]].formula == "attention":
            return HeadOutputs(value.reads[0], inner, module)
        if is_norm(module) and len(value.reads) == 1:  # a norm between the update and its addition
            return Normalized(self.update(value.reads[0]), inner, module, self._statistics(value))
        return RecordedPart(name)

    def _statistics(self, value: Value) -> tuple[str, ...]:
        return tuple(self.structure.descriptions[value.module].derived)

    def _embedding(self, value: Value) -> Term:
        """Token and position vectors; sinusoids are computed in float64 and rounded before the addition."""
        token, position = value.reads
        return Sum(RecordedPart(token), RecordedPart(position, like=token))


def is_norm(module: object) -> TypeGuard[Norm]:
    """True for a module with a method `frozen`; a function, because type checkers refuse the test for a Module."""
    return isinstance(module, Norm)


def head_weights(decoder: Decoder, structure: Structure) -> tuple[Tensor, Tensor | None]:
    """The weight (V, D) and bias (V,) of the head. Raises `UsageError` for a head that is not one linear layer."""
    if structure["head"].formula not in ("linear", "tied linear"):
        kind = type(decoder.head).__name__
        raise UsageError(f"head is a {kind}, which is not a linear layer: a logit is not a sum of contributions")
    weight, bias = decoder.head.weight, decoder.head.bias
    assert isinstance(weight, Tensor), "a linear layer has a weight"
    return weight, bias.detach() if isinstance(bias, Tensor) else None

"""Direct logit attribution: the direct contribution of each part of a model to the logit of one token.

A logit is a dot product of the stream with one vector of the head, and the stream is the sum of what the embedding,
each head and each feed-forward layer added. So the logit is a sum of one number per part (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits"). The norms on the way are frozen: with the statistics of this pass
they are linear, so they can be applied to each part separately. The parts are found by following what each value
reads, back from the value that the head reads.

A direct contribution is what a part added to the logit with no other part in between. It is not the effect of
removing the part, since later layers read what it wrote and the norms would divide by something else; `ablation`
measures that. It is not evidence for a token by itself either: a number that is added to all logits changes no
probability. A comparison with another token (`against`) removes what is common to both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from foretell.errors import UsageError
from foretell.insight.recording import choose_token, make_prediction
from foretell.insight.replacement import replaced_names
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.norm import FrozenNorm, Norm
from foretell.model.quantized_linear import QuantizedLinear
from foretell.model.structure import Structure, Value, model_structure
from foretell.typesetting.document import DocumentSection, Paragraph, Table, bar, quoted, signed
from foretell.typesetting.html import Shown

SHOWN = 16  # parts listed individually

# The sum is computed in float64 from values that the model has rounded. So it may differ from the logit by up to
# SUM_BOUND * epsilon of the model's dtype * the largest absolute logit; measured: at most 5.1, primer 0.7
SUM_BOUND = 16


@dataclass(frozen=True)
class DirectContribution:
    """The direct contribution of one part, by its address, to the logit."""

    name: str
    value: float


@dataclass(frozen=True)
class DirectLogitAttribution(Shown):
    """All parts in the order of the model; `total` is their sum, `logit` the model's own value.

    With `against`, all numbers are differences: the logit of `token` minus the logit of `against`.
    """

    where: str
    token: int
    text: str
    against: int | None
    against_text: str | None
    parts: list[DirectContribution]
    total: float
    logit: float

    def largest(self, count: int) -> list[DirectContribution]:
        """The `count` largest parts by absolute value."""
        return sorted(self.parts, key=lambda part: -abs(part.value))[:count]

    def document(self) -> DocumentSection:
        shown = self.largest(SHOWN if len(self.parts) > SHOWN + 1 else len(self.parts))
        longest = abs(shown[0].value) or 1.0
        rows = [(signed(part.value), bar(part.value / longest), part.name) for part in shown]
        others = len(self.parts) - len(shown)
        if others:
            rest = self.total - sum(part.value for part in shown)
            rows.append((signed(rest), "", f"the other {others} together"))
        ends = [(signed(self.total), "", "their sum"), (signed(self.logit), "", "the model's own")]
        title = f"direct contributions to the logit of {quoted(self.text)}"
        if self.against_text is not None:
            title += f" minus the logit of {quoted(self.against_text)}"
        return DocumentSection(title, [Paragraph(self.where), Table(("", "", ""), [*rows, ("", "", ""), *ends])])

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["where"]
        return values


@torch.inference_mode()
def direct_logit_attribution(
    model: LanguageModel,
    text: str | list[int],
    token: str | int | None = None,
    at: int = -1,
    against: str | int | None = None,
) -> DirectLogitAttribution:
    """The direct contribution of every part to a token's logit at position `at` of the text, or of its ids.

    token: text or id; None for the most probable one. Parts are the token and position embeddings, each head
    (`trunk.blocks.3.attention.core[0]`), the biases of attention outputs, each feed-forward layer, the biases of norms
    (`trunk.norm.bias`) and of the head. Their sum equals the logit within SUM_BOUND. Inside a `Trace` that replaces a
    value of the stream, that value is one part. Raises `UsageError` if the parts do not add up to the logit since a
    trace replaces a value between them and the logit.
    """
    prediction = make_prediction(model, text, at)
    structure = model_structure(model.decoder)
    weight, bias = head_weights(model.decoder, structure)
    stream = StreamDecomposition(model.decoder, structure).stream(*structure["head"].reads)
    with Trace(model, stream.names()) as trace:
        logits = prediction.logits().double()
    chosen = choose_token(model, token, logits)
    other = None if against is None else choose_token(model, against, logits)
    direction, shift = _readout(weight, bias, [chosen] if other is None else [chosen, other])
    parts = [DirectContribution(*part) for part in contributions(stream, trace, prediction.at, direction)]
    parts += [] if shift is None else [DirectContribution("head.bias", shift)]
    text_of = model.tokenizer.text_of
    attribution = DirectLogitAttribution(
        where=str(prediction),
        token=chosen,
        text=text_of(chosen),
        against=other,
        against_text=None if other is None else text_of(other),
        parts=parts,
        total=sum(part.value for part in parts),
        logit=float(logits[chosen] - (0 if other is None else logits[other])),
    )
    largest = max(float(logits.abs().max()), sum(abs(part.value) for part in parts))
    difference = abs(attribution.total - attribution.logit)
    if (names := replaced_names(model.decoder)) and not difference <= SUM_BOUND * torch.finfo(
        model.dtype
    ).eps * largest:
        raise UsageError(
            f"the contributions do not add up to the logit: a trace replaces {' and '.join(sorted(names))} in this pass"
        )
    return attribution


def head_weights(decoder: Decoder, structure: Structure) -> tuple[Tensor, Tensor | None]:
    """The weight (V, D) and bias (V,) of the head. Raises `UsageError` for a head that is not one linear layer."""
    if structure["head"].formula not in ("linear", "tied linear"):
        kind = type(decoder.head).__name__
        raise UsageError(f"head is a {kind}, which is not a linear layer: a logit is not a sum of contributions")
    weight, bias = decoder.head.weight, decoder.head.bias
    assert isinstance(weight, Tensor), "a linear layer has a weight"
    return weight, bias if isinstance(bias, Tensor) else None


def _readout(weight: Tensor, bias: Tensor | None, rows: list[int]) -> tuple[Tensor, float | None]:
    """The vector (D,) whose dot product with the stream is the logit or difference of logits, and the bias term."""
    first, *others = weight[rows].double()
    direction = first - others[0] if others else first
    if bias is None:
        return direction, None
    first, *others = bias[rows].double().tolist()
    return direction, first - sum(others)


NamedVectors = list[tuple[str, Tensor]]  # names and vectors (D,) in float64 that add up to the stream


Positions = int | slice  # one position, or P of them: vectors are then (P, D)


class Term(ABC):
    """A term of the stream, which consists of one or more parts."""

    @abstractmethod
    def names(self) -> list[str]:
        """The values that must be recorded."""

    @abstractmethod
    def parts(self, trace: Trace, at: Positions) -> NamedVectors:
        """The parts at position `at` of the traced pass; biases are (D,) for any number of positions."""

    @abstractmethod
    def trail(self, name: str) -> list[Term]:
        """The term that has the part `name` first, then the norms that it passes in this term; empty without it."""

    def carry(self, name: str, vectors: Tensor, trace: Trace, at: Positions) -> Tensor:
        """Vectors (N, D) or (N, P, D) inside the part `name` as they are in this term; zeros if it lacks the part."""
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
        """The dot products of each part with C directions (C, P, D), by the token that they come from: (N, C, T).

        That is the token that a head reads, and for other parts the one at which they are added. The values of
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


def contributions(stream: Term, trace: Trace, at: int, direction: Tensor) -> list[tuple[str, float]]:
    """The name of each part of the stream at a position, and its dot product with `direction` (D,)."""
    names, vectors = stream.stacked(trace, at)
    return list(zip(names, (vectors @ direction).tolist(), strict=True))


@dataclass(frozen=True)
class Part(Term):
    """A value that is one part; `like` names a value whose precision it is rounded to first."""

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
        """The matrix (D, H*E) that the heads are multiplied by, or the identity; and the bias, if there is one."""
        if not isinstance(self.projection, nn.Linear | QuantizedLinear):
            return torch.eye(width, dtype=torch.float64, device=device), []
        return self.projection.weight.detach().double(), optional_part(f"{self.path}.bias", self.projection.bias)

    def by_token(self, trace: Trace, at: slice, directions: Tensor) -> Tensor:
        """A head reads weight times value at each token, scaled to its recorded output, which may be changed."""
        reads = self.reads(trace, at, directions)
        sources = torch.einsum("cphe,hse,hps->hcs", reads.inside, reads.values, reads.weights * reads.factor)
        rest = torch.einsum("cphe,hpe->hcp", reads.inside, reads.rest)
        _, bias = self.projection_weights(math.prod(reads.inside.shape[-2:]), directions.device)
        heads = sources + added_there(rest, at, sources.shape[-1])
        return torch.cat([heads, *(added_there(directions @ vector, at, heads.shape[-1])[None] for _, vector in bias)])

    def reads(self, trace: Trace, at: slice, directions: Tensor) -> HeadReads:
        """The weights and values of the heads at P positions, and C directions (C, P, D) before their projection."""
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

    factor (H, P, 1): of weights times values, so that they add up to the recorded output, but for the rest (H, P, E).
    """

    weights: Tensor
    values: Tensor
    factor: Tensor
    rest: Tensor
    inside: Tensor

    def from_token(self, head: int, token: int) -> Tensor:
        """The products with the first direction that come from a token, at each position (P,)."""
        return (self.inside[0, :, head] @ self.values[head, token]) * (self.weights * self.factor)[head, :, token]

    def rests(self, head: int) -> Tensor:
        """The products of the first direction with the rest, at each position (P,)."""
        return torch.linalg.vecdot(self.inside[0, :, head], self.rest[head])


TINY = 1e-300  # a head that reads nothing but zeros


def added_there(values: Tensor, at: slice, length: int) -> Tensor:
    """Numbers (..., P) of P positions among all of a text, (..., T)."""
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
    """A term after a norm with the statistics of the pass; the norm's shift is a part."""

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
        """Directions (C, P, D) that give the same products with vectors before the norm as these with them after it."""
        frozen = self.frozen(trace, at)
        scaled = directions * frozen.scale
        return scaled - scaled.mean(-1, keepdim=True) if frozen.centers else scaled

    def frozen(self, trace: Trace, at: Positions) -> FrozenNorm:
        return self.norm.frozen({name: trace[f"{self.path}.{name}"][0, at] for name in self.statistics})


class StreamDecomposition:
    """Finds the terms that a value of the stream consists of. A value that a trace replaces now is one term."""

    def __init__(self, decoder: Decoder, structure: Structure):
        self.decoder, self.structure, self.replaced = decoder, structure, replaced_names(decoder)
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
        if name in self.replaced:
            return Part(name)
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
        """The terms of an update of the stream: the heads of attention; any other update is one part."""
        inner = name
        while inner not in self.replaced and not self.structure[inner].formula and self.structure[inner].reads:
            inner = self.structure[inner].reads[0]
        if inner in self.replaced:
            return Part(name)
        value = self.structure[inner]
        module = self.decoder.get_submodule(value.module)
        if value.formula in ("linear", "identity") and self.structure[value.reads[0]].formula == "attention":
            return HeadOutputs(value.reads[0], inner, module)
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
    """True for a module with a method `frozen`; in a function, since a type checker refuses the test for a Module."""
    return isinstance(module, Norm)

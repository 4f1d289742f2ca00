"""Attention patterns: the weights of each head over a text, and five numbers to describe them.

A weight shows where a head reads from, not how much it matters: see `direct_logit_attribution` and `ablation`. A model
with a memory has three kinds of attention: of its encoder, of its decoder, and from the decoder to the memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.layers import encoder_weights, memory_weights_of, weights_of
from foretell.insight.recorded_pass import record
from foretell.language_model import LanguageModel, decoder_of
from foretell.model.structure import Value, model_structure
from foretell.typesetting.document import DocumentSection, HeatMap, Paragraph, Part, Table, ending, fitting, quoted
from foretell.typesetting.html import Shown


@dataclass(frozen=True)
class Pattern:
    """Keys (T, S) that a head may read, and the words for a head that does."""

    does: str
    keys: Tensor

    def share(self, weights: Tensor) -> Tensor:
        """The mean weight on these keys over all queries but the first that have any; 0 if there are none.

        weights (..., T, S) to one number per head.
        """
        queries = self.keys.any(-1)
        queries[:1] &= len(queries) == 1  # the first query attends only to itself
        return (weights * self.keys).sum(-1)[..., queries].sum(-1) / max(1, int(queries.sum()))


def patterns_of(ids: Sequence[int], device: torch.device | None = None) -> dict[str, Pattern]:
    """The patterns that heads are measured by, in a text with these ids.

    first: idle heads often attend to it (Xiao et al. 2023, "attention sinks"). duplicate: earlier occurrences of the
    query's token (Wang et al. 2022, "duplicate token heads"). induction: the tokens after them (Olsson et al. 2022,
    prefix matching).
    """
    tokens, positions = torch.tensor(ids, device=device), torch.arange(len(ids), device=device)
    queries, earlier = positions[:, None], positions < positions[:, None]
    duplicate = (tokens == tokens[:, None]) & earlier
    return {
        "first": Pattern("first token", (positions == 0).expand_as(earlier)),
        "itself": Pattern("itself", positions == queries),
        "previous": Pattern("previous token", positions == queries - 1),
        "duplicate": Pattern("same token", duplicate),
        "induction": Pattern("induction", duplicate.roll(1, 1) & earlier),
    }


def mean_distance(weights: Tensor) -> Tensor:
    """The mean distance, in tokens, from query to key."""
    positions = torch.arange(weights.shape[-1], device=weights.device)
    return _over_queries((weights * (positions[:, None] - positions)).sum(-1))


def entropy(weights: Tensor) -> Tensor:
    """The mean entropy of the weights in nats: 0 for a single token, ln n for n tokens evenly."""
    return _over_queries(torch.special.entr(weights).sum(-1))


def _over_queries(values: Tensor) -> Tensor:
    """The mean over all queries except the first, which attends only to itself; for one query, its value."""
    return values[..., 1:].mean(-1) if values.shape[-1] > 1 else values[..., 0]


def measures(weights: Tensor, ids: Sequence[int]) -> dict[str, Tensor]:
    """Numbers that describe weights (..., T, S), one of each per head: a distance, shares, the entropy in nats.

    `even` is the entropy as a share of the largest possible one.
    """
    patterns = patterns_of(ids, weights.device)
    shares = {name: pattern.share(weights) for name, pattern in patterns.items()}
    uniform = torch.arange(1, len(ids) + 1, device=weights.device).log()
    entropies = entropy(weights)
    even = entropies / _over_queries(uniform) if len(ids) > 1 else entropies
    return {"distance": mean_distance(weights), **shares, "even": even, "entropy": entropies}


MOST_TELLING = 12
EVEN = "spread evenly"
SUMMARY = "distance {distance:.1f} · first {first:.0%} · itself {itself:.0%} · previous {previous:.0%} · "
SUMMARY += "duplicate {duplicate:.0%} · induction {induction:.0%} · entropy {entropy:.2f}"


@dataclass(frozen=True)
class HeadRole:
    """The most telling pattern of a head on a text, and the query and key of its largest weight in it.

    share: of the head's attention. mean: over all heads. telling: the divergence in nats between these two.
    """

    layer: int
    head: int
    does: str
    share: float
    mean: float
    telling: float
    query: int
    key: int
    weight: float


HEADS_PER_TABLE = 12  # columns that fit in 80 characters


@dataclass(frozen=True, eq=False, repr=False)
class HeadPattern(Shown):
    """The attention weights of one head, (T, S). Every row sums to 1."""

    name: str
    pieces: list[str]
    ids: list[int]
    weights: Tensor

    def document(self) -> DocumentSection:
        return DocumentSection(self.name, [*self.parts(), Paragraph(MEANS)])

    def parts(self) -> list[Part]:
        """The heat map and the measures."""
        labels = [quoted(piece) for piece in self.pieces]
        numbers = Paragraph(SUMMARY.format_map(self.measures()))
        return [HeatMap(self.weights.double().cpu().numpy(), labels, labels), numbers]

    def measures(self) -> dict[str, float]:
        return {name: float(value) for name, value in measures(self.weights, self.ids).items()}

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **self.measures(), "weights": self.weights.tolist()}


@dataclass(frozen=True, eq=False, repr=False)
class HeadPatterns(Shown):
    """The attention weights (L, H, T, T) of all heads over one text. shown: a layer, or None for a ranking of all."""

    pieces: list[str]
    ids: list[int]
    weights: Tensor
    shown: int | None = None

    @property
    def subject(self) -> str:
        return ending("".join(self.pieces))

    def measured(self, name: str) -> Tensor:
        """A number of `measures` for every head, (L, H)."""
        return measures(self.weights, self.ids)[name]

    def roles(self) -> list[HeadRole]:
        """The role of each head, most telling first.

        Heads are ranked by the divergence of (share, rest) from the mean of all heads, because a share that most heads
        have, such as on the first token, does not tell them apart.
        """
        patterns = patterns_of(self.ids, self.weights.device)
        patterns["even"] = Pattern(EVEN, torch.ones_like(patterns["first"].keys))
        numbers = measures(self.weights.double(), self.ids)
        shares = torch.stack([numbers[name] for name in patterns]).clamp(0, 1)  # (P, L, H)
        means = shares.mean((1, 2), keepdim=True).expand_as(shares)
        telling = torch.special.xlogy(shares, shares / means) + torch.special.xlogy(
            1 - shares, (1 - shares) / (1 - means)
        )
        chosen = telling.nan_to_num().masked_fill(shares < means, 0).argmax(0)  # (L, H)
        roles = []
        for layer, head in itertools.product(*map(range, chosen.shape)):
            index = int(chosen[layer, head])
            pattern = list(patterns.values())[index]
            inside = self.weights[layer, head] * pattern.keys
            inside[: len(inside) > 1] = 0  # the first query attends only to itself
            query, key = divmod(int(inside.argmax()), len(inside))
            share, mean, nats = (float(each[index, layer, head].nan_to_num()) for each in (shares, means, telling))
            roles.append(HeadRole(layer, head, pattern.does, share, mean, nats, query, key, float(inside[query, key])))
        return sorted(roles, key=lambda role: -role.telling)

    def head(self, layer: int, head: int) -> HeadPattern:
        """One head. Raises `UsageError` if it does not exist."""
        layers, heads = self.weights.shape[:2]
        if not (0 <= layer < layers and 0 <= head < heads):
            raise UsageError(
                f"layer {layer} has no head {head}; the layers are 0 to {layers - 1}, the heads 0 to {heads - 1}"
            )
        return HeadPattern(
            f"trunk.blocks.{layer}.attention.core[{head}]", self.pieces, self.ids, self.weights[layer, head]
        )

    def layer(self, layer: int) -> HeadPatterns:
        """The same with one layer shown. Raises `UsageError` if it does not exist."""
        if not 0 <= layer < len(self.weights):
            raise UsageError(f"layer {layer} does not exist; the layers are 0 to {len(self.weights) - 1}")
        return replace(self, shown=layer)

    def heads(self) -> list[HeadPattern]:
        """The heads of the shown layer, or of all layers."""
        layers = range(len(self.weights)) if self.shown is None else (self.shown,)
        return [self.head(layer, head) for layer in layers for head in range(self.weights.shape[1])]

    def document(self) -> DocumentSection:
        if self.shown is not None:
            heads = (DocumentSection(head.name, head.parts()) for head in self.heads())
            title = f"attention patterns of layer {self.shown}"
            return DocumentSection(title, [Paragraph(f"{ROWS} {MEANS}"), *heads])
        roles = self.roles()
        rows = [self._row(role) for role in roles[:MOST_TELLING]]
        header = ("head", "reads", "share", "mean", "nats", "most of all, from query to key")
        first = roles[0]
        text = f"The most telling of {len(roles)} heads. Head {first.layer}.{first.head} is "
        text += f"{self.head(first.layer, first.head).name}. Share: of its attention, as a mean over query tokens. "
        text += "Mean: of this share over all heads. Nats: how much the share tells, given the mean."
        if len(set(self.ids)) == len(self.ids):
            text += " No token is repeated, so no head can read the same token or do induction."
        return DocumentSection("what each head reads", [Paragraph(text), Table(header, rows)])

    def _row(self, role: HeadRole) -> tuple[str, ...]:
        tokens = f"{quoted(self.pieces[role.query])} → {quoted(self.pieces[role.key])}"
        numbers = f"{role.share:.0%}", f"{role.mean:.0%}", f"{role.telling:.2f}"
        return (f"{role.layer}.{role.head}", role.does, *numbers, f"{role.weight:.0%} {tokens}")

    def to_json(self) -> dict[str, Any]:
        roles = {(role.layer, role.head): asdict(role) for role in self.roles()}
        kept = range(len(self.weights)) if self.shown is None else (self.shown,)
        wanted = [roles[layer, head] for layer in kept for head in range(self.weights.shape[1])]
        heads = [{**head.to_json(), "role": role} for head, role in zip(self.heads(), wanted, strict=True)]
        return {"tokens": self.pieces, "heads": heads}


def measure_tables(values: Tensor, write: Callable[[float], str]) -> Sequence[Table]:
    """Numbers (L, H) with a row per layer and a column per head; several tables if there are many heads."""
    heads = values.shape[1]
    tables = []
    for start in range(0, heads, HEADS_PER_TABLE):
        end = min(start + HEADS_PER_TABLE, heads)
        rows = [(str(layer), *map(write, row[start:end])) for layer, row in enumerate(values.tolist())]
        tables.append(Table(("layer", *map(str, range(start, end))), rows))
    return tables


ROWS = "Each row is a query token, each column a key token, both from the first to the last."
MEANS = "Means are over all query tokens but the first, which can attend to itself only."


@torch.inference_mode()
def head_patterns(model: LanguageModel, text: str) -> HeadPatterns:
    """The attention weights of every head over a text, in one pass."""
    structure = model_structure(decoder_of(model))
    names = [weights_of(model.decoder, structure, layer).name for layer in range(len(structure.stream) - 1)]
    recording = record(model, text, names, structure=structure)
    recording.next_logits(-1)  # refuses a pass whose numbers are not finite
    weights = torch.stack([recording.stored(name) for name in names])
    return HeadPatterns(model.texts_of(recording.ids), recording.ids, weights)


ENCODER, OWN, CROSS = "encoder self-attention", "masked self-attention", "encoder-decoder attention"
CAPTION_WIDTH = 68
MEMORY_ROWS = "Each row is a query token, each column a key token."


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The attention weights (H, T, S) of one layer, with the tokens of its queries and keys."""

    kind: str
    layer: int
    name: str
    queries: list[str]
    keys: list[str]
    weights: Tensor

    def document(self) -> DocumentSection:
        rows, columns = ([quoted(piece) for piece in pieces] for pieces in (self.queries, self.keys))
        caption = "" if rows == columns else f"columns: {fitting(columns, CAPTION_WIDTH)}"
        heads: list[Part] = [
            DocumentSection(f"{self.name}[{head}]", [HeatMap(weights.double().cpu().numpy(), rows, columns, caption)])
            for head, weights in enumerate(self.weights)
        ]
        return DocumentSection(f"{self.kind}, layer {self.layer}", heads)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "weights": self.weights.tolist()}


@dataclass(frozen=True, eq=False, repr=False)
class MemoryPatterns(Shown):
    """All attention weights of a pass of a model with a memory. shown: a layer, or None for a summary."""

    layers: list[LayerWeights]
    shown: int | None = None

    def layer(self, index: int) -> MemoryPatterns:
        """One layer of each kind. Raises `UsageError` if it does not exist."""
        chosen = [each for each in self.layers if each.layer == index]
        if not chosen:
            last = max(each.layer for each in self.layers)
            raise UsageError(f"layer {index} does not exist; the layers are 0 to {last}")
        return MemoryPatterns(chosen, index)

    def document(self) -> DocumentSection:
        if self.shown is not None:
            title = f"attention patterns of layer {self.shown}"
            return DocumentSection(title, [Paragraph(MEMORY_ROWS), *(each.document() for each in self.layers)])
        note = "The mean entropy of the weights of each head in nats, over all query tokens but the first: 0 for a "
        note += "single token, ln n for n tokens evenly."
        parts: list[Part] = [Paragraph(note)]
        for kind in (ENCODER, OWN, CROSS):
            entropies = torch.stack([entropy(each.weights) for each in self.layers if each.kind == kind])  # (L, H)
            parts.append(DocumentSection(kind, measure_tables(entropies, "{:.2f}".format)))
        return DocumentSection("attention patterns of each head", parts)

    def to_json(self) -> dict[str, Any]:
        return {"layers": [each.to_json() for each in self.layers]}


def weights_by_kind(model: LanguageModel) -> list[tuple[str, int, Value]]:
    """(kind, layer, value) for every attention of a model with a memory."""
    structure = model_structure(model.decoder)
    encoder = [(ENCODER, layer, value) for layer, value in enumerate(encoder_weights(structure))]
    layers = range(len(structure.stream) - 1)
    own = [(OWN, layer, weights_of(model.decoder, structure, layer)) for layer in layers]
    cross = ((CROSS, layer, memory_weights_of(structure, layer)) for layer in layers)
    return [*encoder, *own, *((kind, layer, value) for kind, layer, value in cross if value is not None)]


@torch.inference_mode()
def memory_patterns(model: LanguageModel, text: str) -> MemoryPatterns:
    """The weights of every attention over a text and the model's memory, in one pass."""
    assert model.memory is not None, "head_patterns is for models without a memory"
    kinds = weights_by_kind(model)
    recording = record(model, text, [value.name for _, _, value in kinds])
    recording.next_logits(-1)  # refuses a pass whose numbers are not finite
    own, memory = model.texts_of(recording.ids), model.memory.pieces
    axes: dict[str, tuple[list[str], list[str]]] = {ENCODER: (memory, memory), OWN: (own, own), CROSS: (own, memory)}
    return MemoryPatterns(
        [
            LayerWeights(kind, layer, value.name.removesuffix(".weights"), *axes[kind], recording.stored(value.name))
            for kind, layer, value in kinds
        ]
    )


def attention_patterns(model: LanguageModel, text: str, layer: int | None = None) -> Shown:
    """The patterns of one or all layers; for a model with a memory, of all three kinds."""
    patterns = head_patterns(model, text) if model.memory is None else memory_patterns(model, text)
    return patterns if layer is None else patterns.layer(layer)

"""Attention patterns: the weights of each head over a text, and five numbers to describe them.

A weight shows where a head reads from, not how much it matters: see `direct_logit_attribution` and `ablation`. A model
with a memory has three kinds of attention: of its encoder, of its decoder, and from the decoder to the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
class HeadMeasure:
    """A number that describes a head's attention weights, and its format."""

    title: str
    of: Callable[[Tensor], Tensor]  # weights (..., T, S) to one number per head, (...)
    format: Callable[[float], str]


def mean_distance(weights: Tensor) -> Tensor:
    """The mean distance, in tokens, from query to key."""
    positions = torch.arange(weights.shape[-1], device=weights.device)
    return _over_queries((weights * (positions[:, None] - positions)).sum(-1))


def attention_sink(weights: Tensor) -> Tensor:
    """The mean weight on the first token, to which idle heads often attend (Xiao et al. 2023, "attention sinks")."""
    return _over_queries(weights[..., 0])


def share_on_itself(weights: Tensor) -> Tensor:
    return _over_queries(weights.diagonal(dim1=-2, dim2=-1))


def share_on_previous(weights: Tensor) -> Tensor:
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(-1) if weights.shape[-1] > 1 else 0 * weights[..., 0, 0]


def entropy(weights: Tensor) -> Tensor:
    """The mean entropy of the weights in nats: 0 for a single token, ln n for n tokens evenly."""
    return _over_queries(torch.special.entr(weights).sum(-1))


def _over_queries(values: Tensor) -> Tensor:
    """The mean over all queries except the first, which attends only to itself; for one query, its value."""
    return values[..., 1:].mean(-1) if values.shape[-1] > 1 else values[..., 0]


MEASURES: dict[str, HeadMeasure] = {
    "distance": HeadMeasure("mean distance in tokens", mean_distance, "{:.1f}".format),
    "first": HeadMeasure("share on the first token", attention_sink, "{:.0%}".format),
    "itself": HeadMeasure("share on the token itself", share_on_itself, "{:.0%}".format),
    "previous": HeadMeasure("share on the token before", share_on_previous, "{:.0%}".format),
    "entropy": HeadMeasure("entropy in nats", entropy, "{:.2f}".format),
}


HEADS_PER_TABLE = 12  # columns that fit in 80 characters


@dataclass(frozen=True, eq=False, repr=False)
class HeadPattern(Shown):
    """The attention weights of one head, (T, S). Every row sums to 1."""

    name: str
    pieces: list[str]
    weights: Tensor

    def document(self) -> DocumentSection:
        return DocumentSection(self.name, [*self.parts(), Paragraph(MEANS)])

    def parts(self) -> list[Part]:
        """The heat map and the measures."""
        labels = [quoted(piece) for piece in self.pieces]
        numbers = " · ".join(f"{name} {measure.format(self._of(measure))}" for name, measure in MEASURES.items())
        return [HeatMap(self.weights.double().cpu().numpy(), labels, labels), Paragraph(numbers)]

    def to_json(self) -> dict[str, Any]:
        numbers = {name: self._of(measure) for name, measure in MEASURES.items()}
        return {"name": self.name, **numbers, "weights": self.weights.tolist()}

    def _of(self, measure: HeadMeasure) -> float:
        return float(measure.of(self.weights))


@dataclass(frozen=True, eq=False, repr=False)
class HeadPatterns(Shown):
    """The attention weights (L, H, T, T) of all heads over one text. shown: a layer, or None for a summary of all."""

    pieces: list[str]
    weights: Tensor
    shown: int | None = None

    @property
    def subject(self) -> str:
        return ending("".join(self.pieces))

    def measured(self, name: str) -> Tensor:
        """A measure of MEASURES for every head, (L, H)."""
        return MEASURES[name].of(self.weights)

    def head(self, layer: int, head: int) -> HeadPattern:
        """One head. Raises `UsageError` if it does not exist."""
        layers, heads = self.weights.shape[:2]
        if not (0 <= layer < layers and 0 <= head < heads):
            raise UsageError(
                f"layer {layer} has no head {head}; the layers are 0 to {layers - 1}, the heads 0 to {heads - 1}"
            )
        return HeadPattern(f"trunk.blocks.{layer}.attention.core[{head}]", self.pieces, self.weights[layer, head])

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
        parts = [
            DocumentSection(measure.title, measure_tables(self.measured(name), measure.format))
            for name, measure in MEASURES.items()
        ]
        note = Paragraph(f"Layers down, heads across. {MEANS}")
        return DocumentSection("attention patterns of each head", [note, *parts])

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.pieces, "heads": [head.to_json() for head in self.heads()]}


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
    return HeadPatterns(model.texts_of(recording.ids), torch.stack([recording.stored(name) for name in names]))


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
            parts.append(DocumentSection(kind, measure_tables(entropies, MEASURES["entropy"].format)))
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

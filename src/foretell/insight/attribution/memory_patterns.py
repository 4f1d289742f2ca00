"""Attention patterns of a model with a memory: of its encoder, of its decoder, and from the decoder to the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.attribution.head_patterns import entropy
from foretell.insight.attribution.prediction import make_prediction
from foretell.insight.layers import encoder_weights, memory_weights_of, weights_of
from foretell.insight.trace import Trace
from foretell.insight.wording import fitting, quoted
from foretell.language_model import LanguageModel
from foretell.model.structure import Value, model_structure
from foretell.typesetting.document import DocumentSection, HeatMap, Paragraph, Part, Table
from foretell.typesetting.notebook import Shown

ENCODER, OWN, CROSS = "encoder self-attention", "masked self-attention", "encoder-decoder attention"
WIDTH = 68  # columns of a caption
ROWS = "Each row is a query token, each column a key token."


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The attention weights (H, T, S) of one layer, with the tokens of its queries and keys."""

    kind: str
    layer: int
    name: str
    weights: Tensor
    queries: list[str]
    keys: list[str]

    def document(self) -> DocumentSection:
        """A heat map per head."""
        rows, columns = ([quoted(piece) for piece in pieces] for pieces in (self.queries, self.keys))
        caption = "" if rows == columns else f"columns: {fitting(columns, WIDTH)}"
        heads: list[Part] = [
            DocumentSection(f"{self.name}[{head}]", [HeatMap(weights.double().cpu().numpy(), rows, columns, caption)])
            for head, weights in enumerate(self.weights)
        ]
        return DocumentSection(f"{self.kind}, layer {self.layer}", heads)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "layer": self.layer,
            "name": self.name,
            "queries": self.queries,
            "keys": self.keys,
            "weights": self.weights.tolist(),
        }


@dataclass(frozen=True, eq=False)
class MemoryPatterns(Shown):
    """All attention weights of a pass of a model with a memory; `shown` is the layer to show, None for a summary."""

    layers: list[LayerWeights]
    shown: int | None = None

    def layer(self, index: int) -> MemoryPatterns:
        """One layer of each kind. Raises `UsageError` if none has it."""
        chosen = [each for each in self.layers if each.layer == index]
        if not chosen:
            last = max(each.layer for each in self.layers)
            raise UsageError(f"layer {index} does not exist; the layers are 0 to {last}")
        return MemoryPatterns(chosen, index)

    def document(self) -> DocumentSection:
        """The weights of the chosen layer; without one, how spread each head is."""
        if self.shown is not None:
            title = f"attention patterns of layer {self.shown}"
            return DocumentSection(title, [Paragraph(ROWS), *(each.document() for each in self.layers)])
        note = "The mean entropy of the weights of each head in nats: 0 for a single token, ln n for n tokens evenly."
        parts: list[Part] = [Paragraph(note)]
        for kind in (ENCODER, OWN, CROSS):
            rows = [(str(each.layer), *spread(each.weights)) for each in self.layers if each.kind == kind]
            heads = (str(head) for head in range(len(rows[0]) - 1))
            parts.append(DocumentSection(kind, [Table(("layer", *heads), rows)]))
        return DocumentSection("attention patterns of each head", parts)

    def to_json(self) -> dict[str, Any]:
        return {"layers": [each.to_json() for each in self.layers]}


def spread(weights: Tensor) -> list[str]:
    """The entropy of each head of (H, T, S), written."""
    return [f"{value:.2f}" for value in entropy(weights).tolist()]


def weights_by_kind(model: LanguageModel) -> list[tuple[str, int, Value]]:
    """Kind, layer and value of every attention of a model with a memory."""
    structure = model_structure(model.decoder)
    encoder = [(ENCODER, layer, value) for layer, value in enumerate(encoder_weights(structure))]
    layers = range(len(structure.stream) - 1)
    own = [(OWN, layer, weights_of(model.decoder, structure, layer)) for layer in layers]
    cross = ((CROSS, layer, memory_weights_of(structure, layer)) for layer in layers)
    return [*encoder, *own, *((kind, layer, value) for kind, layer, value in cross if value is not None)]


@torch.inference_mode()
def memory_patterns(model: LanguageModel, text: str) -> MemoryPatterns:
    """The weights of every attention over a text and the model's memory, in one pass."""
    if model.memory is None:
        raise UsageError("this model reads no memory; head_patterns has its attention")
    prediction = make_prediction(model, text)
    kinds = weights_by_kind(model)
    with Trace(model, [value.name for _, _, value in kinds]) as trace:
        prediction.logits()
    own, memory = [model.tokenizer.text_of(token) for token in prediction.ids], model.memory.pieces
    axes: dict[str, Sequence[list[str]]] = {ENCODER: (memory, memory), OWN: (own, own), CROSS: (own, memory)}
    return MemoryPatterns(
        [
            LayerWeights(kind, layer, value.name.removesuffix(".weights"), trace[value.name][0], *axes[kind])
            for kind, layer, value in kinds
        ]
    )

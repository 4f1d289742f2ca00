"""Where each head looks: its attention weights, and what they come to in numbers.

A weight says from where a head took what it took, not how much that mattered: see `contributions` and `ablation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.attribution.prediction import make_prediction
from foretell.insight.trace import Trace
from foretell.insight.wording import quoted
from foretell.runs.saved_model import LanguageModel
from foretell.typesetting.document import HeatMap, Paragraph, Section, Table
from foretell.typesetting.notebook import Shown

HEADS_ABREAST = 12  # columns of a table that 80 characters have room for


@dataclass(frozen=True, eq=False)
class HeadPattern(Shown):
    """One head's weights, (T, S): how much query t takes of key s. Every row sums to 1."""

    name: str
    pieces: list[str]
    weights: Tensor

    def document(self) -> Section:
        """The weights as shades, a row for each query."""
        labels = [quoted(piece) for piece in self.pieces]
        return Section(self.name, [HeatMap(self.weights.double().cpu().numpy(), labels, labels)])


@dataclass(frozen=True)
class Summary:
    """What one number says of every head, and how it is written."""

    title: str
    measure: Callable[[Tensor], Tensor]  # weights (..., T, S) to one number a head, (...)
    format: Callable[[float], str]


def mean_distance(weights: Tensor) -> Tensor:
    """How many tokens back a head looks, on average."""
    places = torch.arange(weights.shape[-1], device=weights.device)
    return _over_queries((weights * (places[:, None] - places)).sum(-1))


def share_on_first(weights: Tensor) -> Tensor:
    """How much goes to the first token, where heads that have nothing to do often look (Xiao et al. 2023)."""
    return _over_queries(weights[..., 0])


def share_on_itself(weights: Tensor) -> Tensor:
    """How much each token gives to itself."""
    return _over_queries(weights.diagonal(dim1=-2, dim2=-1))


def share_on_previous(weights: Tensor) -> Tensor:
    """How much goes to the token before; for the second token that is the first."""
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(-1) if weights.shape[-1] > 1 else 0 * weights[..., 0, 0]


def entropy(weights: Tensor) -> Tensor:
    """How spread out a head's look is, in nats: 0 is one token alone, ln n is n tokens evenly."""
    return _over_queries(torch.special.entr(weights).sum(-1))


def _over_queries(values: Tensor) -> Tensor:
    """The mean over all queries but the first, which has only itself to look at; alone, it is all there is."""
    return values[..., 1:].mean(-1) if values.shape[-1] > 1 else values[..., 0]


def _percent(value: float) -> str:
    return f"{100 * value:.0f}"


SUMMARIES: dict[str, Summary] = {
    "distance": Summary("mean distance in tokens", mean_distance, "{:.1f}".format),
    "first": Summary("percent on the first token", share_on_first, _percent),
    "itself": Summary("percent on the token itself", share_on_itself, _percent),
    "previous": Summary("percent on the token before", share_on_previous, _percent),
    "entropy": Summary("entropy in nats", entropy, "{:.2f}".format),
}


@dataclass(frozen=True, eq=False)
class HeadPatterns(Shown):
    """The weights of all heads over one text, (L, H, T, T)."""

    pieces: list[str]
    weights: Tensor

    def measured(self, name: str) -> Tensor:
        """One of SUMMARIES for every head, (L, H)."""
        return SUMMARIES[name].measure(self.weights)

    def head(self, layer: int, head: int) -> HeadPattern:
        """One head, to be looked at whole."""
        layers, heads = self.weights.shape[:2]
        if not (0 <= layer < layers and 0 <= head < heads):
            raise UsageError(
                f"there is no head {head} in layer {layer}; there are layers 0 to {layers - 1}, heads 0 to {heads - 1}"
            )
        return HeadPattern(f"trunk.blocks.{layer}.attention.core[{head}]", self.pieces, self.weights[layer, head])

    def layer(self, layer: int) -> Section:
        """Every head of a layer as shades."""
        heads = [self.head(layer, head).document() for head in range(self.weights.shape[1])]
        return Section(f"where the heads of layer {layer} look", [Paragraph(WHERE), *heads])

    def document(self) -> Section:
        """For each summary a table, layers down and heads across."""
        parts = [Section(summary.title, self._tables(name)) for name, summary in SUMMARIES.items()]
        return Section("where each head looks", [Paragraph(AVERAGES), *parts])

    def to_json(self) -> dict[str, Any]:
        """The summaries of each head, and its weights."""
        measured = {name: self.measured(name).tolist() for name in SUMMARIES}
        layers, heads = self.weights.shape[:2]
        return {
            "tokens": self.pieces,
            "heads": [
                {
                    "name": f"trunk.blocks.{layer}.attention.core[{head}]",
                    **{name: values[layer][head] for name, values in measured.items()},
                    "weights": self.weights[layer, head].tolist(),
                }
                for layer in range(layers)
                for head in range(heads)
            ],
        }

    def _tables(self, name: str) -> Sequence[Table]:
        """One table, or several where there are many heads."""
        values, write = self.measured(name).tolist(), SUMMARIES[name].format
        return [
            Table(
                ("layer", *(str(head) for head in range(start, min(start + HEADS_ABREAST, len(values[0]))))),
                [(str(layer), *map(write, row[start : start + HEADS_ABREAST])) for layer, row in enumerate(values)],
            )
            for start in range(0, len(values[0]), HEADS_ABREAST)
        ]


WHERE = "Each row is a token that looks, each column one that is looked at, both from the first to the last."
AVERAGES = "Layers down, heads across. Means over all tokens but the first, which has only itself to look at."


@torch.inference_mode()
def head_patterns(model: LanguageModel, text: str) -> HeadPatterns:
    """The attention weights of every head over a text, in one pass."""
    prediction = make_prediction(model, text)
    names = [f"trunk.blocks.{layer}.attention.core.weights" for layer in range(model.decoder.config.num_layers)]
    with Trace(model, names) as trace:
        prediction.logits()
    pieces = [model.tokenizer.text_of(token) for token in prediction.ids]
    return HeadPatterns(pieces, torch.cat([trace[name] for name in names]))

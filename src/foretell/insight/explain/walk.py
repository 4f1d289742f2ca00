"""The walk through a whole pass: what each layer looked at, how much it changed, what it would have answered."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.insight.early import logits_after
from foretell.insight.explain.flow import stream_into
from foretell.insight.explain.output import losses
from foretell.insight.explain.recording import Recording, record
from foretell.insight.explain.steps import plain
from foretell.insight.explain.walk_document import walk_document
from foretell.insight.explain.walked import SMALL_WIDTH, LayerWalk, Sight, Walked
from foretell.insight.points import trace_names
from foretell.language_model import LanguageModel, TokenProbability
from foretell.typesetting.document import Section
from foretell.typesetting.notebook import Shown

ANSWERS, LAYER_ANSWERS = 5, 2
SELECTED = (  # of a larger model
    *("embed", "head", "trunk.blocks.*", "trunk.blocks.*.attention", "trunk.blocks.*.feedforward"),
    "trunk.blocks.*.attention.core.weights",
)


@dataclass(frozen=True)
class Walk(Walked, Shown):
    """A pass over a text that shows itself."""

    def document(self) -> Section:
        return walk_document(self)

    def to_json(self) -> dict[str, Any]:
        recording = self.recording
        tokens = [
            {"id": token, "text": recording.model.tokenizer.text_of(token), "loss": loss}
            for token, loss in zip(recording.ids, (None, *self.losses), strict=True)
        ]
        layers = [asdict(layer) for layer in self.layers]
        answers = [asdict(answer) for answer in self.answers]
        values = {"values": every_value(recording)} if self.is_small else {}
        return plain({"tokens": tokens, "layers": layers, "answers": answers, "loss": self.loss, **values})


def walk(model: LanguageModel, text: str) -> Walk:
    """The walk through the pass over a text. Raises as `record` does for a text that cannot be read."""
    recording = record(model, text, selection(model))
    layers = tuple(walk_layer(recording, layer) for layer in range(model.decoder.config.num_layers))
    last = recording.stored("head")[-1]
    found = losses(recording)[:-1].tolist()
    answers = answers_of(recording, last, ANSWERS)
    return Walk(recording, layers, size_of(recording, stream_into(len(layers))), answers, tuple(found))


def answers_of(recording: Recording, logits: Tensor, top: int) -> list[TokenProbability]:
    """The likeliest tokens of scores (V,)."""
    return recording.model.top_tokens(recording.model.log_probabilities(logits.cpu()), top)


def selection(model: LanguageModel) -> list[str]:
    """What a walk records: of small models everything."""
    if model.decoder.config.width <= SMALL_WIDTH:
        return ["**"]
    return [glob for glob in SELECTED if model.decoder.config.feedforward != "none" or "feedforward" not in glob]


def walk_layer(recording: Recording, layer: int) -> LayerWalk:
    """One layer."""
    block, has_feedforward = f"trunk.blocks.{layer}", recording.config.feedforward != "none"
    after = logits_after(recording.model.decoder, recording.stored(block)[-1])
    return LayerWalk(
        layer=layer,
        stream=size_of(recording, stream_into(layer)),
        attention=size_of(recording, f"{block}.attention"),
        feedforward=size_of(recording, f"{block}.feedforward") if has_feedforward else None,
        sights=sights_of(recording.stored(f"{block}.attention.core.weights")[:, -1]),
        answers=answers_of(recording, after, LAYER_ANSWERS),
    )


def sights_of(weights: Tensor) -> tuple[Sight, ...]:
    """The largest weight of each head, from weights (H, S)."""
    best = weights.max(-1)
    return tuple(
        Sight(head, key, weight)
        for head, (key, weight) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    )


def size_of(recording: Recording, name: str) -> float:
    """The length of a stream's vector at the last position."""
    return float(torch.linalg.vector_norm(recording.stored(name)[-1].double().cpu()))


def every_value(recording: Recording) -> dict[str, Any]:
    """All named values as nested lists."""
    return {name: recording.array(name).tolist() for name in trace_names(recording.model)}

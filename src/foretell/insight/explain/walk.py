"""The walk through a pass: what each layer attended to, how much it changed, and what it predicted so far."""

from __future__ import annotations

import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.insight.address import OF_MEMORY
from foretell.insight.attribution.logit_lens import lens_logits
from foretell.insight.explain.recording import Recording, record
from foretell.insight.explain.steps import plain
from foretell.insight.explain.walk_matrices import last_matrices, layer_matrices
from foretell.insight.layers import memory_weights_of, updates_of, weights_of
from foretell.insight.wording import fitting, quoted
from foretell.language_model import LanguageModel, MemoryText, TokenProbability
from foretell.model.logits import logit_chunks
from foretell.model.structure import model_structure
from foretell.typesetting.document import DocumentSection, Paragraph, Part, Table
from foretell.typesetting.notebook import Shown

SMALL_WIDTH = 8  # up to this width the vectors themselves are shown
ANSWERS, LAYER_ANSWERS = 5, 2  # top tokens shown of the text and per layer
EDGE = 8  # tokens shown from the beginning and the end of a long text
LINE = 68
HARD_SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class StrongestKey:
    """The key with the largest attention weight of a head, from the last position."""

    head: int
    key: int
    weight: float


@dataclass(frozen=True)
class LayerWalk:
    """One layer at the last position. Sizes are vector norms: of the layer's input stream and of the updates to it."""

    layer: int
    stream: float
    attention: float
    feedforward: float | None
    sights: tuple[StrongestKey, ...]
    answers: list[TokenProbability]
    cross_attention: float | None = None
    memory_sights: tuple[StrongestKey, ...] = ()  # keys are tokens of the memory

    def to_json(self) -> dict[str, Any]:
        of_memory = () if self.cross_attention is not None else ("cross_attention", "memory_sights")
        return {key: value for key, value in asdict(self).items() if key not in of_memory}


@dataclass(frozen=True)
class Walk(Shown):
    """A walk through a pass over a text. `losses` are in nats, one for each token but the first."""

    recording: Recording
    layers: tuple[LayerWalk, ...]
    stream: float  # norm of the stream after the last layer, at the last position
    answers: list[TokenProbability]
    losses: tuple[float, ...]

    @property
    def loss(self) -> float | None:
        """The mean loss of the text; None for a text of one token."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    @property
    def is_small(self) -> bool:
        return self.recording.config.width <= SMALL_WIDTH

    def document(self) -> DocumentSection:
        return walk_document(self)

    def to_json(self) -> dict[str, Any]:
        recording = self.recording
        tokens = [
            {"id": token, "text": recording.model.tokenizer.text_of(token), "loss": loss}
            for token, loss in zip(recording.ids, (None, *self.losses), strict=True)
        ]
        layers = [layer.to_json() for layer in self.layers]
        read = {} if recording.model.memory is None else {"memory": memory_tokens(recording.model.memory)}
        answers = [asdict(answer) for answer in self.answers]
        values = {"values": every_value(recording)} if self.is_small else {}
        return plain({**read, "tokens": tokens, "layers": layers, "answers": answers, "loss": self.loss, **values})


def walk(model: LanguageModel, text: str) -> Walk:
    """Walk through the pass over a text. Raises the errors of `record`."""
    recording = record(model, text, selection(model))
    layers = tuple(walk_layer(recording, layer) for layer in range(model.decoder.config.num_layers))
    answers = answers_of(recording, recording.logits(-1), ANSWERS)
    stream = size_of(recording, recording.structure.stream[-1])
    return Walk(recording, layers, stream, answers, tuple(token_losses(recording)))


@torch.no_grad()
def token_losses(recording: Recording) -> list[float]:
    """The negative log-probability of each token but the first, given those before it."""
    targets = torch.tensor(recording.ids[1:], dtype=torch.long)
    losses: list[float] = []
    for logits in logit_chunks(recording.model.decoder, recording.hidden[:-1]):
        following = targets[len(losses) : len(losses) + len(logits), None]
        losses += (-recording.model.log_probabilities(logits.cpu()).gather(1, following)[:, 0]).tolist()
    return losses


def answers_of(recording: Recording, logits: Tensor, top: int) -> list[TokenProbability]:
    """The most probable tokens of logits (V,)."""
    return recording.model.top_tokens(recording.model.log_probabilities(logits.cpu()), top)


def selection(model: LanguageModel) -> list[str]:
    """The names to record: all of them for a small model."""
    decoder, structure = model.decoder, model_structure(model.decoder)
    layers = range(decoder.config.num_layers)
    weights = [weights_of(decoder, structure, layer).name for layer in layers]
    updates = [update.reads[1] for layer in layers for update in updates_of(decoder, structure, layer)]
    weights += [read.name for layer in layers if (read := memory_weights_of(structure, layer)) is not None]
    return ["**"] if decoder.config.width <= SMALL_WIDTH else [*structure.stream, *weights, *updates]


def walk_layer(recording: Recording, layer: int) -> LayerWalk:
    """The walk of one layer."""
    decoder, structure = recording.model.decoder, recording.structure
    before, after = structure.stream[layer : layer + 2]
    sizes = [size_of(recording, update.reads[1]) for update in updates_of(decoder, structure, layer)]
    memory_weights = memory_weights_of(structure, layer)
    cross = None if memory_weights is None else sizes.pop(1)
    weights = weights_of(decoder, structure, layer).name
    return LayerWalk(
        layer=layer,
        stream=size_of(recording, before),
        attention=sizes[0],
        feedforward=sizes[1] if len(sizes) > 1 else None,
        sights=sights_of(recording.stored(weights)[:, -1]),
        answers=answers_of(recording, lens_logits(decoder, recording.stored(after)[-1]), LAYER_ANSWERS),
        cross_attention=cross,
        memory_sights=() if memory_weights is None else sights_of(recording.stored(memory_weights.name)[:, -1]),
    )


def sights_of(weights: Tensor) -> tuple[StrongestKey, ...]:
    """The largest weight of each head, from weights (H, S)."""
    best = weights.max(-1)
    return tuple(
        StrongestKey(head, key, weight)
        for head, (key, weight) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    )


def size_of(recording: Recording, name: str) -> float:
    """The norm of a stream at the last position."""
    return float(torch.linalg.vector_norm(recording.stored(name)[-1].double().cpu()))


def every_value(recording: Recording) -> dict[str, Any]:
    """All named values as nested lists."""
    return {name: recording.array(name).tolist() for name in recording.structure.names}


def walk_document(walk: Walk) -> DocumentSection:
    """The walk as a document, in the order of the pass."""
    recording = walk.recording
    parts: list[Part] = [tokens_section(walk), layers_section(walk), attention_section(walk)]
    if recording.model.memory is not None:
        parts[:0] = [memory_section(recording.model.memory)]
        parts.append(memory_attention_section(walk))
    if walk.is_small:
        parts += [layer_matrices(recording, layer.layer) for layer in walk.layers]
        parts.append(last_matrices(recording))
    return DocumentSection("", [*parts, answers_section(walk)])


def tokens_section(walk: Walk) -> DocumentSection:
    """The tokens of the text with their probabilities and losses."""
    recording = walk.recording
    rows = []
    for position, (token, loss) in enumerate(zip(recording.ids, (None, *walk.losses), strict=True)):
        predicted = ("", "") if loss is None else (f"{math.exp(-loss):.2%}", f"{loss:.3f}")
        rows.append((str(position), str(token), recording.token(position), *predicted))
    if len(rows) > 2 * EDGE + 1:
        left_out = len(rows) - 2 * EDGE
        rows[EDGE:-EDGE] = [("", "", f"… {left_out} more", "", "")]
    note = "Probability: of this token, given those before it. Loss: -log of the probability, in nats."
    total = "" if walk.loss is None else f" Mean loss of the text: {walk.loss:.4f}."
    return DocumentSection(
        f"The text: {len(recording.ids)} token{'s' if len(recording.ids) > 1 else ''}",
        [Table(("position", "id", "token", "probability", "loss"), rows), Paragraph(note + total)],
    )


def layers_section(walk: Walk) -> DocumentSection:
    """One line per layer: the norms of stream and updates, and the prediction after the layer."""
    rows = [layer_row(layer) for layer in walk.layers]
    cross = [] if walk.recording.model.memory is None else ["to the source"]
    header = ("layer", "stream", "attention", *cross, "feed-forward", "if the pass ended after it")
    verb = "adds to it" if walk.recording.config.attention_residual else "replaces it with"
    note = (
        "Norms of vectors at the last position: the stream that enters a layer, and the vector that each sublayer "
        f"{verb}. After the last layer the norm of the stream is {walk.stream:.2f}. The last column applies the last "
        "norm and the head directly, without the layers in between (the logit lens)."
    )
    return DocumentSection("Through the layers", [Table(header, rows), Paragraph(note)])


def layer_row(layer: LayerWalk) -> tuple[str, ...]:
    feedforward = "" if layer.feedforward is None else f"{layer.feedforward:.2f}"
    would = ", ".join(f"{quoted(answer.text)} {answer.probability:.1%}" for answer in layer.answers)
    cross = [] if layer.cross_attention is None else [f"{layer.cross_attention:.2f}"]
    return str(layer.layer), f"{layer.stream:.2f}", f"{layer.attention:.2f}", *cross, feedforward, would


def attention_section(walk: Walk) -> DocumentSection:
    """The token with the largest weight per head and layer; heads with the same token together."""
    table = sights_table([(layer, layer.sights) for layer in walk.layers], walk.recording.token)
    return DocumentSection(f"Where attention looks from the last token, {walk.recording.token(-1)}", [table])


def memory_tokens(memory: MemoryText) -> list[dict[str, Any]]:
    """The tokens that the encoder has read, as JSON values."""
    return [{"id": token_id, "text": text} for token_id, text in zip(memory.ids, memory.pieces, strict=True)]


def memory_section(memory: MemoryText) -> DocumentSection:
    """The tokens that the encoder has read."""
    text = fitting((quoted(piece) for piece in memory.pieces), 10 * LINE)
    return DocumentSection(f"The source: {len(memory.ids)} tokens", [Paragraph(text)])


def memory_attention_section(walk: Walk) -> DocumentSection:
    """The same for the tokens of the source."""

    def token(position: int) -> str:
        return walk.recording.token_on(OF_MEMORY, position)

    table = sights_table([(layer, layer.memory_sights) for layer in walk.layers], token)
    return DocumentSection(f"What it reads of the source from there, {walk.recording.token(-1)}", [table])


def sights_table(layers: list[tuple[LayerWalk, tuple[StrongestKey, ...]]], token: Callable[[int], str]) -> Table:
    """The strongest keys of each layer's heads."""
    rows = []
    for layer, sights in layers:
        lines = wrapped(sights_text(sights, token))
        rows += [("" if index else str(layer.layer), line) for index, line in enumerate(lines)]
    return Table(("layer", "the token with the largest weight of each head: heads and weights"), rows)


def wrapped(entries: list[str]) -> list[str]:
    """Entries joined and wrapped into lines; an entry is only broken if it is longer than a line."""
    text = " ".join(entry.replace(" ", HARD_SPACE) for entry in entries)
    return [line.replace(HARD_SPACE, " ") for line in textwrap.wrap(text, LINE)]


def sights_text(sights: tuple[StrongestKey, ...], token: Callable[[int], str]) -> list[str]:
    """`3 ' of': head 0 61%,`, `2 44%;`, `0 'The': head 1 80%`: the token of the most heads comes first."""
    heads: defaultdict[int, list[str]] = defaultdict(list)
    for sight in sights:
        heads[sight.key].append(f"{sight.head} {sight.weight:.0%}")
    most = sorted(heads, key=lambda key: (-len(heads[key]), key))
    text = "; ".join(f"{key} {token(key)}: head {', '.join(heads[key])}" for key in most)
    return re.split(r"(?<=\d%[,;]) ", text)


def answers_section(walk: Walk) -> DocumentSection:
    """The most probable next tokens."""
    rows = [(quoted(answer.text), str(answer.id), f"{answer.probability:.2%}") for answer in walk.answers]
    return DocumentSection(f"What follows {walk.recording.token(-1)}", [Table(("token", "id", "probability"), rows)])

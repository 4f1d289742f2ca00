"""The walk through a pass: the attention, the changes and the prediction of each layer.

For a small model every vector is shown too, as matrices with one row per token, with the formulas between them.
"""

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

from foretell.errors import counted
from foretell.insight.address import MEMORY_PREFIX
from foretell.insight.attribution.logit_lens import lens_logits
from foretell.insight.explain.steps import plain
from foretell.insight.layers import (
    UPDATES,
    memory_weights_of,
    stream_path,
    sublayer_of,
    updates_of,
    weights_of,
)
from foretell.insight.recorded_pass import Array, RecordedPass, record, to_array
from foretell.language_model import LanguageModel, TokenProbability
from foretell.model.structure import Value, model_structure
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Part, Table, ending, fitting, quoted
from foretell.typesetting.expression import Call, Expression, Fraction, Matrix, Root, Script, Symbol, row, script
from foretell.typesetting.html import HARD_SPACE, Shown

SMALL_WIDTH = 8  # up to this width the vectors themselves are shown
ANSWERS, LAYER_ANSWERS = 5, 2  # top tokens shown of the text and per layer
EDGE = 8  # tokens shown from the beginning and the end of a long text
LINE = 68


@dataclass(frozen=True)
class StrongestKey:
    """The key with the largest attention weight of a head, from the last position."""

    head: int
    key: int
    weight: float


@dataclass(frozen=True)
class LayerWalk:
    """A layer at the last position. Sizes are vector norms of the layer's input stream and of its updates."""

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

    def row(self) -> tuple[str, ...]:
        """The layer's line in the table: the norms, and the prediction after the layer."""
        sizes = [self.stream, self.attention, *([] if self.cross_attention is None else [self.cross_attention])]
        feedforward = "" if self.feedforward is None else f"{self.feedforward:.2f}"
        would = ", ".join(f"{quoted(answer.text)} {answer.probability:.1%}" for answer in self.answers)
        return str(self.layer), *(f"{size:.2f}" for size in sizes), feedforward, would


@dataclass(frozen=True, repr=False)
class Walk(Shown):
    """A walk through a pass over a text. losses: in nats, for each token except the first."""

    recording: RecordedPass
    layers: tuple[LayerWalk, ...]
    stream: float  # norm of the stream after the last layer, at the last position
    answers: list[TokenProbability]
    losses: tuple[float, ...]

    @property
    def subject(self) -> str:
        return ending(self.recording.model.tokenizer.decode(self.recording.ids))

    @property
    def loss(self) -> float | None:
        """The mean loss of the text; None for a text of one token."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    @property
    def is_small(self) -> bool:
        return self.recording.config.width <= SMALL_WIDTH

    def document(self) -> DocumentSection:
        recording, memory = self.recording, self.recording.model.memory
        last = recording.token(-1)
        sights = sights_table({layer.layer: layer.sights for layer in self.layers}, recording.token)
        parts: list[Part] = [
            self._tokens(),
            self._through_layers(),
            DocumentSection(f"Where attention looks from the last token, {last}", [sights]),
        ]
        if memory is not None:
            text = fitting((quoted(piece) for piece in memory.pieces), 10 * LINE)
            parts.insert(0, DocumentSection(f"The source: {counted(len(memory.ids), 'token')}", [Paragraph(text)]))
            sights = sights_table(
                {layer.layer: layer.memory_sights for layer in self.layers},
                lambda position: recording.token_on(MEMORY_PREFIX, position),
            )
            parts.append(DocumentSection(f"What it reads of the source from there, {last}", [sights]))
        if self.is_small:
            parts += [layer_matrices(recording, layer.layer) for layer in self.layers]
            parts.append(last_matrices(recording))
        rows = [(quoted(answer.text), str(answer.id), f"{answer.probability:.2%}") for answer in self.answers]
        answers = DocumentSection(f"What follows {last}", [Table(("token", "id", "probability"), rows)])
        return DocumentSection("", [*parts, answers])

    def to_json(self) -> dict[str, Any]:
        recording, memory = self.recording, self.recording.model.memory
        tokens = [
            {"id": token, "text": recording.model.tokenizer.text_of(token), "loss": loss}
            for token, loss in zip(recording.ids, (None, *self.losses), strict=True)
        ]
        read = {}
        if memory is not None:
            read["memory"] = [{"id": id, "text": text} for id, text in zip(memory.ids, memory.pieces, strict=True)]
        layers, answers = [layer.to_json() for layer in self.layers], [asdict(answer) for answer in self.answers]
        values = {}
        if self.is_small:
            values["values"] = {name: recording.array(name).tolist() for name in recording.structure.names}
        return plain({**read, "tokens": tokens, "layers": layers, "answers": answers, "loss": self.loss, **values})

    def _tokens(self) -> DocumentSection:
        recording = self.recording
        rows = []
        for position, (token, loss) in enumerate(zip(recording.ids, (None, *self.losses), strict=True)):
            predicted = ("", "") if loss is None else (f"{math.exp(-loss):.2%}", f"{loss:.3f}")
            rows.append((str(position), str(token), recording.token(position), *predicted))
        if len(rows) > 2 * EDGE + 1:
            left_out = len(rows) - 2 * EDGE
            rows[EDGE:-EDGE] = [("", "", f"… {left_out} more", "", "")]
        note = "Probability: of this token, given those before it. Loss: -log of the probability, in nats."
        total = "" if self.loss is None else f" Mean loss of the text: {self.loss:.4f}."
        return DocumentSection(
            f"The text: {counted(len(recording.ids), 'token')}",
            [Table(("position", "id", "token", "probability", "loss"), rows), Paragraph(note + total)],
        )

    def _through_layers(self) -> DocumentSection:
        """One line per layer: the norms of stream and updates, and the prediction after the layer."""
        cross = [] if self.recording.model.memory is None else ["to the source"]
        header = ("layer", "stream", "attention", *cross, "feed-forward", "if the pass ended after it")
        verb = "adds to it" if self.recording.config.attention_residual else "replaces it with"
        note = (
            "Norms of vectors at the last position: the stream that enters a layer, and the vector that each sublayer "
            f"{verb}. After the last layer the norm of the stream is {self.stream:.2f}. The last column applies the "
            "last norm and the head directly, without the layers in between (the logit lens)."
        )
        table = Table(header, [layer.row() for layer in self.layers])
        return DocumentSection("Through the layers", [table, Paragraph(note)])


def walk(model: LanguageModel, text: str) -> Walk:
    """Walk through the pass over a text. Raises the errors of `record`."""
    recording = record(model, text, selection(model))
    layers = tuple(walk_layer(recording, layer) for layer in range(model.decoder.config.num_layers))
    answers = answers_of(recording, recording.logits(-1), ANSWERS)
    stream = size_of(recording, recording.structure.stream[-1])
    return Walk(recording, layers, stream, answers, tuple(recording.losses))


def selection(model: LanguageModel) -> list[str]:
    """The names to record: all of them for a small model."""
    decoder, structure = model.decoder, model_structure(model.decoder)
    layers = range(decoder.config.num_layers)
    weights = [weights_of(decoder, structure, layer).name for layer in layers]
    updates = [update.reads[1] for layer in layers for update in updates_of(decoder, structure, layer)]
    weights += [read.name for layer in layers if (read := memory_weights_of(structure, layer)) is not None]
    return ["**"] if decoder.config.width <= SMALL_WIDTH else [*structure.stream, *weights, *updates]


def walk_layer(recording: RecordedPass, layer: int) -> LayerWalk:
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
        sights=sights_of(recording.trace.last_weights(weights)[0]),
        answers=answers_of(recording, lens_logits(decoder, recording.stored(after)[-1]), LAYER_ANSWERS),
        cross_attention=cross,
        memory_sights=() if memory_weights is None else sights_of(recording.trace.last_weights(memory_weights.name)[0]),
    )


def answers_of(recording: RecordedPass, logits: Tensor, top: int) -> list[TokenProbability]:
    """The most probable tokens of logits (V,)."""
    return recording.model.top_tokens(recording.model.log_probabilities(logits.cpu()), top)


def sights_of(weights: Tensor) -> tuple[StrongestKey, ...]:
    """The largest weight of each head, from weights (H, S)."""
    best = weights.max(-1)
    return tuple(map(StrongestKey, range(len(weights)), best.indices.tolist(), best.values.tolist()))


def size_of(recording: RecordedPass, name: str) -> float:
    """The norm of a stream at the last position."""
    return float(torch.linalg.vector_norm(recording.stored(name)[-1].double().cpu()))


def sights_table(layers: dict[int, tuple[StrongestKey, ...]], token: Callable[[int], str]) -> Table:
    """The strongest keys of each layer's heads; an entry is broken only if it is longer than a line."""
    rows = []
    for layer, sights in layers.items():
        text = " ".join(entry.replace(" ", HARD_SPACE) for entry in sights_text(sights, token))
        lines = [line.replace(HARD_SPACE, " ") for line in textwrap.wrap(text, LINE)]
        rows += [("" if index else str(layer), line) for index, line in enumerate(lines)]
    return Table(("layer", "the token with the largest weight of each head: heads and weights"), rows)


def sights_text(sights: tuple[StrongestKey, ...], token: Callable[[int], str]) -> list[str]:
    """`3 ' of': head 0 61%,`, `2 44%;`, `0 'The': head 1 80%`: the token of the most heads comes first."""
    heads: defaultdict[int, list[str]] = defaultdict(list)
    for sight in sights:
        heads[sight.key].append(f"{sight.head} {sight.weight:.0%}")
    most = sorted(heads, key=lambda key: (-len(heads[key]), key))
    text = "; ".join(f"{key} {token(key)}: head {', '.join(heads[key])}" for key in most)
    return re.split(r"(?<=\d%[,;]) ", text)


LABEL = 10  # characters of a row's token label
DIGITS, WIDE = 4, 6  # wider matrices have one digit less, so that eight columns fit on a line


def layer_matrices(recording: RecordedPass, layer: int) -> DocumentSection:
    structure = recording.structure
    stream = "X"
    parts: list[Part] = [shown(recording, structure.stream[layer], Symbol(stream), "the stream, one row per token")]
    memory = [("C", "X″")] if memory_weights_of(structure, layer) else []
    updates = iter((("U", "X′"), *memory, ("F", "X‴" if memory else "X″")))
    for value in stream_path(structure, layer):
        if value.formula not in UPDATES:  # a norm after an update
            parts += after_norm(recording, value.name, stream)
            continue
        letter, after = next(updates)
        parts += update_matrices(recording, layer, value, stream, letter)
        parts.append(shown(recording, value.name, Symbol(after), f"the stream after {letter}"))
        stream = after
    return DocumentSection(f"Layer {layer}", parts)


def update_matrices(recording: RecordedPass, layer: int, value: Value, stream: str, letter: str) -> list[Part]:
    """The matrices of a sublayer: the normalized stream that it reads, any heads, and its output."""
    structure, block = recording.structure, recording.structure.stream[layer + 1]
    before, update = value.reads
    sublayer = sublayer_of(structure, value)
    path = [other.name for other in stream_path(structure, layer)]
    parts: list[Part] = []
    for name, other in structure.values.items():
        is_in_block = name == other.module and name.rpartition(".")[0] == block
        if is_in_block and other.reads == (before,) and name not in path:
            parts += after_norm(recording, name, stream)
    cores = structure.with_formula("attention", f"{sublayer}.")
    for core in cores:
        for head in range(recording.config.num_heads):
            parts += head_matrices(recording, core.name, head)
    note = "the output of attention, all heads together" if cores else "the output of the feed-forward layer"
    note += ", normalized" if update != sublayer else ""
    return [*parts, shown(recording, update, Symbol(letter), note)]


def head_matrices(recording: RecordedPass, core: str, head: int) -> list[Part]:
    """Queries, keys, values, scores, weights and outputs of one head."""
    config = recording.config
    group = head // (config.num_heads // config.num_kv_heads)
    parts: list[Part] = []
    for name, letter, index in (("query", "Q", head), ("key", "K", group), ("value", "V", group)):
        path = f"{core}.{name}"
        values = labelled(recording, recording.array(path)[index], recording.dimensions(path)[1])
        parts.append(Formula(row(script(letter, str(head)), "=", values), f"{path}[{index}]"))
    q, k, v, a, s = (script(letter, str(head)) for letter in "QKVAS")
    scores = Fraction(row(q, Script(k, above=Symbol("T"))), Root(Symbol("E")))
    masked, weights, mixed = (
        labelled(recording, recording.array(name)[head]) for name in (f"{core}.masked", f"{core}.weights", core)
    )
    return [
        *parts,
        Formula(
            row(s, "=", Call("mask", scores), "=", masked),
            f"{core}.masked[{head}]: row t, column s is the masked score of query t and key s",
        ),
        Formula(row(a, "=", Call("softmax", s), "=", weights), f"{core}.weights[{head}]: every row sums to 1"),
        Formula(row(a, v, "=", mixed), f"{core}[{head}]: each row a weighted sum of the values"),
    ]


def last_matrices(recording: RecordedPass) -> DocumentSection:
    logits = shown(recording, "head", Symbol("logits"), "one logit per token of the vocabulary")
    probabilities = to_array(recording.model.log_probabilities(recording.stored("head").cpu()).exp())
    equation = row(Symbol("P"), "=", Call("softmax", Symbol("logits")), "=", labelled(recording, probabilities))
    note = "probabilities: row t is the distribution of the token after position t"
    return DocumentSection("The head", [*after_norm(recording, "trunk.norm", "X"), logits, Formula(equation, note)])


def after_norm(recording: RecordedPass, name: str, read: str) -> list[Part]:
    """The output of a norm; empty if the model has none."""
    if recording.structure[name].formula == "identity":
        return []
    return [shown(recording, name, Call("norm", Symbol(read)))]


def shown(recording: RecordedPass, name: str, symbol: Expression, note: str = "") -> Formula:
    """A stream (T, D) with its name."""
    matrix = labelled(recording, recording.array(name), recording.dimensions(name)[0])
    return Formula(row(symbol, "=", matrix), f"{name}: {note}" if note else name)


def labelled(recording: RecordedPass, values: Array, meaning: str = "position") -> Matrix:
    """A matrix with a token label for each row; `meaning` is the meaning of the row dimension."""
    labels = [recording.token_on(meaning, position)[:LABEL] for position in range(len(values))]
    return Matrix(values, DIGITS if values.shape[1] <= WIDE else DIGITS - 1, labels)

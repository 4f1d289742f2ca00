"""The walk as a document for a person: tables of layers, and for small models the matrices themselves."""

from __future__ import annotations

import math
import re
import textwrap
from collections import defaultdict

from foretell.insight.explain.matrices import last_matrices, layer_matrices
from foretell.insight.explain.recording import Recording
from foretell.insight.explain.walked import LayerWalk, Walked
from foretell.insight.wording import quoted
from foretell.typesetting.document import DocumentSection, Paragraph, Part, Table

EDGE = 8  # tokens shown from the beginning and the end of a long text
LINE = 68
HARD_SPACE = "\N{NO-BREAK SPACE}"


def walk_document(walk: Walked) -> DocumentSection:
    """All sections, in the order of the pass."""
    recording = walk.recording
    parts: list[Part] = [tokens(walk), layer_sizes(walk), attention_sights(walk)]
    if walk.is_small:
        parts += [layer_matrices(recording, layer.layer) for layer in walk.layers]
        parts.append(last_matrices(recording))
    return DocumentSection("", [*parts, answers(walk)])


def tokens(walk: Walked) -> DocumentSection:
    """The text's tokens, and how well each was foretold."""
    recording = walk.recording
    rows = []
    for position, (token, loss) in enumerate(zip(recording.ids, (None, *walk.losses), strict=True)):
        foretold = ("", "") if loss is None else (f"{math.exp(-loss):.2%}", f"{loss:.3f}")
        rows.append((str(position), str(token), recording.token(position), *foretold))
    if len(rows) > 2 * EDGE + 1:
        left_out = len(rows) - 2 * EDGE
        rows[EDGE:-EDGE] = [("", "", f"… {left_out} more", "", "")]
    note = "Probability: what the model gave to this token, having read those before it. Loss: -log of that, in nats."
    total = "" if walk.loss is None else f" Mean loss of the text: {walk.loss:.4f}."
    return DocumentSection(
        f"The text: {len(recording.ids)} token{'s' if len(recording.ids) > 1 else ''}",
        [Table(("position", "number", "token", "probability", "loss"), rows), Paragraph(note + total)],
    )


def layer_sizes(walk: Walked) -> DocumentSection:
    """One line a layer: how large the updates are beside the stream, and what the model would answer after it."""
    rows = [layer_row(layer) for layer in walk.layers]
    header = ("layer", "stream", "attention", "feed-forward", "if the pass ended after it")
    adds = "adds to" if walk.recording.config.attention_residual else "makes in place of"
    note = (
        "Lengths of vectors at the last position: the stream that comes into a layer, and what each part of the layer "
        f"{adds} it. After the last layer the stream is {walk.stream:.2f} long. The last column asks the last norm and "
        "the head at once, without the layers that come after."
    )
    return DocumentSection("Through the layers", [Table(header, rows), Paragraph(note)])


def layer_row(layer: LayerWalk) -> tuple[str, ...]:
    feedforward = "" if layer.feedforward is None else f"{layer.feedforward:.2f}"
    would = ", ".join(f"{quoted(answer.text)} {answer.probability:.1%}" for answer in layer.answers)
    return str(layer.layer), f"{layer.stream:.2f}", f"{layer.attention:.2f}", feedforward, would


def attention_sights(walk: Walked) -> DocumentSection:
    """For each layer, which token its heads weigh most; heads that look at the same one together."""
    rows = []
    for layer in walk.layers:
        lines = wrapped(sights_text(walk.recording, layer))
        rows += [("" if number else str(layer.layer), line) for number, line in enumerate(lines)]
    table = Table(("layer", "the token that each head weighs most, and the heads with their weights"), rows)
    return DocumentSection(f"Where attention looks from the last token, {walk.recording.token(-1)}", [table])


def wrapped(entries: list[str]) -> list[str]:
    """Entries one after the other in lines, none broken where it need not be."""
    text = " ".join(entry.replace(" ", HARD_SPACE) for entry in entries)
    return [line.replace(HARD_SPACE, " ") for line in textwrap.wrap(text, LINE)]


def sights_text(recording: Recording, layer: LayerWalk) -> list[str]:
    """`3 ' of': head 0 61%,`, `2 44%;`, `0 'The': head 1 80%`: the token that most heads look at comes first."""
    heads: defaultdict[int, list[str]] = defaultdict(list)
    for sight in layer.sights:
        heads[sight.key].append(f"{sight.head} {sight.weight:.0%}")
    most = sorted(heads, key=lambda key: (-len(heads[key]), key))
    text = "; ".join(f"{key} {recording.token(key)}: head {', '.join(heads[key])}" for key in most)
    return re.split(r"(?<=\d%[,;]) ", text)


def answers(walk: Walked) -> DocumentSection:
    """The final distribution."""
    rows = [(quoted(answer.text), str(answer.id), f"{answer.probability:.2%}") for answer in walk.answers]
    return DocumentSection(
        f"What follows {walk.recording.token(-1)}", [Table(("token", "number", "probability"), rows)]
    )

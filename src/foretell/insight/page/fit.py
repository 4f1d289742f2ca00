"""The choice of what a page holds: the required numbers, then the optional ones in a fixed order while they fit.

Required: tokens, vocabulary, logits of the last position, norms of the stream, the lens, attention of every head, to a
memory too. If these are too large, attention keeps only as many of the last query rows as fit. Optional, in this order:
embeddings, the head's inputs and rows, the stream's vectors point by point, queries and keys layer by layer. What does
not fit is left out and reported; a later, smaller kind may still fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from foretell.insight.page.collect import TracedPass
from foretell.insight.page.pack import PackedSection, pack_exact, pack_rounded, pack_text, pack_weights, pack_whole

DEFAULT_BYTES = 20_000_000
MARGIN = 0.97  # of the rows that the mean compression suggests, since rows and layers compress differently


@dataclass
class Contents:
    """The sections of a page, a sentence about each thing left out, and the first query whose attention is kept.

    The page becomes interactive once `sections` are read; `rest` comes after its script and is read afterwards.
    """

    sections: list[PackedSection] = field(default_factory=list)
    rest: list[PackedSection] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    first_query: int = 0

    @property
    def size(self) -> int:
        """Bytes of the contents of all sections."""
        return sum(len(section.content) for section in (*self.sections, *self.rest))


def choose(traced: TracedPass, room: int, limit: int) -> Contents:
    """The sections that fit into `room` bytes of a page that may have `limit` bytes."""
    contents = Contents(sections=list(needed(traced)))
    if len(traced.lens.ids[0]) < len(traced.ids):
        contents.cut.append(
            f"The logit lens is kept for the last {len(traced.lens.ids[0])} of {len(traced.ids)} positions."
        )
    reason = f"since the page would pass {in_megabytes(limit)}"
    add_attention(contents, traced, room, reason)
    for words, make in OPTIONAL:
        add_what_fits(contents, list(make(traced)), room, f"Left out, {reason}: {words}")
    return contents


def add_what_fits(contents: Contents, groups: list[list[PackedSection]], room: int, words: str) -> None:
    """Add the groups before the first that does not fit, and a sentence if any is left out."""
    kept = 0
    for group in groups:
        if contents.size + sum(len(section.content) for section in group) > room:
            break
        contents.rest += group
        kept += 1
    if kept < len(groups):
        rest = f"; kept for the first {kept} of {len(groups)}" if kept else ""
        contents.cut.append(f"{words}{rest}.")


def in_megabytes(size: int) -> str:
    """`19.9 MB`, or kB below one MB."""
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def needed(traced: TracedPass) -> Iterator[PackedSection]:
    """The required sections except attention."""
    lens = traced.lens
    yield pack_text("vocabulary", json.dumps(traced.vocabulary, ensure_ascii=False))
    yield pack_exact("logits", traced.logits)
    yield pack_rounded("stream.sizes", np.linalg.norm(traced.streams.astype(np.float64), axis=-1))
    yield pack_whole("lens.ids", lens.ids)
    yield pack_rounded("lens.probabilities", lens.probabilities)
    yield pack_rounded("lens.logits", lens.logits)
    yield pack_rounded("lens.following", lens.following)
    yield pack_whole("lens.ranks", lens.ranks)
    if traced.memory is not None:
        for kind, layers in (("cross", traced.memory.cross), ("encoder", traced.memory.encoder)):
            for layer, weights in enumerate(layers):
                yield pack_weights(f"memory.{kind}.{layer}", weights)


def add_attention(contents: Contents, traced: TracedPass, room: int, reason: str) -> None:
    """Add the attention of every head; of the last queries only if all rows are too large."""
    T = len(traced.ids)
    sections = [attention_section(traced, layer, 0) for layer in range(len(traced.attention))]
    while contents.size + sum(len(section.content) for section in sections) > room and contents.first_query < T - 1:
        size = sum(len(section.content) for section in sections)
        share = MARGIN * max(0, room - contents.size) / size
        kept = int((T - contents.first_query) * share)  # later rows are longer, so this takes a few rounds
        contents.first_query = T - max(1, kept)
        sections = [attention_section(traced, layer, contents.first_query) for layer in range(len(traced.attention))]
    if contents.first_query:
        contents.cut.append(
            f"Attention is kept for the last {T - contents.first_query} of {T} query positions, {reason}."
        )
    contents.sections += sections


def attention_section(traced: TracedPass, layer: int, first_query: int) -> PackedSection:
    """The weights of one layer from `first_query` on."""
    window = traced.config.windows[layer] or len(traced.ids)
    skipped = sum(min(query + 1, window) for query in range(first_query))
    return pack_weights(f"attention.{layer}", traced.attention[layer][:, skipped:])


def embeddings(traced: TracedPass) -> Iterator[list[PackedSection]]:
    sections = [pack_rounded("embed.sum", traced.streams[0])]
    if traced.positions is not None:
        sections += [pack_rounded("embed.words", traced.words), pack_rounded("embed.positions", traced.positions)]
    yield sections


def final_vectors(traced: TracedPass) -> Iterator[list[PackedSection]]:
    # Exact: a logit would add up D rounding errors
    yield [
        pack_exact("final", traced.streams[-1]),
        pack_exact("head.rows", traced.rows),
        pack_exact("head.biases", traced.row_biases),
    ]


def stream_vectors(traced: TracedPass) -> Iterator[list[PackedSection]]:
    for index in range(1, len(traced.points)):
        yield [pack_rounded(f"stream.{index}", traced.streams[index])]


def queries_and_keys(traced: TracedPass) -> Iterator[list[PackedSection]]:
    for layer, (queries, keys) in enumerate(zip(traced.queries, traced.keys, strict=True)):
        yield [pack_rounded(f"queries.{layer}", queries), pack_rounded(f"keys.{layer}", keys)]


# In this order; each function yields groups of sections that are kept or left out together
OPTIONAL: tuple[tuple[str, Callable[[TracedPass], Iterator[list[PackedSection]]]], ...] = (
    ("word and position vectors", embeddings),
    ("the vectors that the head reads, and its rows", final_vectors),
    ("the stream's vectors, place by place", stream_vectors),
    ("queries and keys, layer by layer", queries_and_keys),
)

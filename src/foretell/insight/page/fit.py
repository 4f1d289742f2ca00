"""Which numbers a page holds: what it must have, then the rest in a fixed order while the page stays small enough.

Must have: tokens, vocabulary, the last position's logits, sizes of the stream, the lens, attention of every head. Where
even these are too much, attention keeps the rows of the last queries, as many as fit. The rest, in this order:
embeddings, what the head reads with its rows, the stream's vectors place by place, queries and keys layer by layer.
What does not fit is left out and named; a later, smaller kind may still be there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from foretell.insight.page.collect import TracedPass
from foretell.insight.page.pack import PackedSection, pack_exact, pack_rounded, pack_text, pack_weights, pack_whole

DEFAULT_BYTES = 20_000_000
MARGIN = 0.97  # of an estimate from one layer, for layers that compress less


@dataclass
class Contents:
    """The sections of a page, what was left out (one sentence each), and the first query that attention is kept of.

    The page answers when it has read `sections`; `rest` comes after its script and is read while it is looked at.
    """

    sections: list[PackedSection] = field(default_factory=list)
    rest: list[PackedSection] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    first_query: int = 0

    @property
    def size(self) -> int:
        """Bytes of all sections' contents."""
        return sum(len(section.content) for section in (*self.sections, *self.rest))


def choose(seen: TracedPass, room: int, limit: int) -> Contents:
    """The sections that fit into `room` bytes of a page that may have `limit`."""
    contents = Contents(sections=list(needed(seen)))
    if len(seen.lens.ids[0]) < len(seen.ids):
        contents.cut.append(
            f"The logit lens is kept for the last {len(seen.lens.ids[0])} of {len(seen.ids)} positions."
        )
    reason = f"since the page would pass {in_megabytes(limit)}"
    add_attention(contents, seen, room, reason)
    for words, make in OPTIONAL:
        add_what_fits(contents, list(make(seen)), room, f"Left out, {reason}: {words}")
    return contents


def add_what_fits(contents: Contents, groups: list[list[PackedSection]], room: int, words: str) -> None:
    """The groups up to the first that does not fit; what is left out is said."""
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
    """`19.9 MB`; what is less than one in kB."""
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def needed(seen: TracedPass) -> Iterator[PackedSection]:
    """All that a page has in any case, but attention."""
    lens = seen.lens
    yield pack_text("vocabulary", json.dumps(seen.vocabulary, ensure_ascii=False))
    yield pack_exact("logits", seen.logits)
    yield pack_rounded("stream.sizes", np.linalg.norm(seen.streams.astype(np.float64), axis=-1))
    yield pack_whole("lens.ids", lens.ids)
    yield pack_rounded("lens.probabilities", lens.probabilities)
    yield pack_rounded("lens.logits", lens.logits)
    yield pack_rounded("lens.following", lens.following)
    yield pack_whole("lens.ranks", lens.ranks)


def add_attention(contents: Contents, seen: TracedPass, room: int, reason: str) -> None:
    """Attention of every head; of the last queries only, where all rows would be too much."""
    T = len(seen.ids)
    sections = [attention_section(seen, layer, 0) for layer in range(len(seen.attention))]
    while contents.size + sum(len(section.content) for section in sections) > room and contents.first_query < T - 1:
        size = sum(len(section.content) for section in sections)
        share = MARGIN * max(0, room - contents.size) / size
        kept = int((T - contents.first_query) * share)  # rows near the end are the longest, so a few rounds follow
        contents.first_query = T - max(1, kept)
        sections = [attention_section(seen, layer, contents.first_query) for layer in range(len(seen.attention))]
    if contents.first_query:
        contents.cut.append(
            f"Attention is kept for the last {T - contents.first_query} of {T} query positions, {reason}."
        )
    contents.sections += sections


def attention_section(seen: TracedPass, layer: int, first_query: int) -> PackedSection:
    """The weights of one layer from a query on."""
    window = seen.config.windows[layer] or len(seen.ids)
    skipped = sum(min(query + 1, window) for query in range(first_query))
    return pack_weights(f"attention.{layer}", seen.attention[layer][:, skipped:])


def embeddings(seen: TracedPass) -> Iterator[list[PackedSection]]:
    sections = [pack_rounded("embed.sum", seen.streams[0])]
    if seen.positions is not None:
        sections += [pack_rounded("embed.words", seen.words), pack_rounded("embed.positions", seen.positions)]
    yield sections


def final_vectors(seen: TracedPass) -> Iterator[list[PackedSection]]:
    # Exact, since a logit adds up the roundings of D products
    yield [
        pack_exact("final", seen.streams[-1]),
        pack_exact("head.rows", seen.rows),
        pack_exact("head.biases", seen.row_biases),
    ]


def stream_vectors(seen: TracedPass) -> Iterator[list[PackedSection]]:
    for number in range(1, len(seen.places)):
        yield [pack_rounded(f"stream.{number}", seen.streams[number])]


def queries_and_keys(seen: TracedPass) -> Iterator[list[PackedSection]]:
    for layer, (queries, keys) in enumerate(zip(seen.queries, seen.keys, strict=True)):
        yield [pack_rounded(f"queries.{layer}", queries), pack_rounded(f"keys.{layer}", keys)]


# Each yields groups of sections, which are kept or left out together
OPTIONAL: tuple[tuple[str, Callable[[TracedPass], Iterator[list[PackedSection]]]], ...] = (
    ("word and position vectors", embeddings),
    ("the vectors that the head reads, and its rows", final_vectors),
    ("the stream's vectors, place by place", stream_vectors),
    ("queries and keys, layer by layer", queries_and_keys),
)

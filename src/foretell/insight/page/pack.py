"""The contents of a page: numbers packed into text, and the choice of what fits into its size.

Numbers are whole multiples of 0.0001 in 16 or 32 bits if they fit, else exact float32. Bytes are stored in planes, all
lowest bytes first and all highest last: high bytes are nearly alike, and gzip compresses them better next to each
other.

Required: tokens, vocabulary, logits of the last position, norms of the stream, the lens, attention of every head, to a
memory too. If these are too large, attention keeps only as many of the last query rows as fit. Optional, in this order:
embeddings, the head's inputs and rows, the stream's vectors point by point, queries and keys layer by layer. What does
not fit is left out and reported; a later, smaller kind may still fit.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretell.insight.page.collect import TracedPass, check_finite, steps

COMPRESSION = 6
ROUNDED = (("rounded16", "<i2", 2**15 - 1), ("rounded32", "<i4", 2**31 - 1))  # kind, dtype, largest number
DEFAULT_BYTES = 20_000_000
MARGIN = 0.97  # of the rows that the mean compression suggests, since rows and layers compress differently


@dataclass(frozen=True)
class PackedSection:
    """Packed numbers: gzip in base64, the shape, and the kind, which determines the number format."""

    name: str
    kind: str
    shape: tuple[int, ...]
    content: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "shape": self.shape}


def pack_weights(name: str, weights: np.ndarray) -> PackedSection:
    """Pack attention weights, given as whole multiples of 0.0001 (see `steps`)."""
    return _section(name, "weight16", weights.astype("<u2"))


def pack_rounded(name: str, values: np.ndarray) -> PackedSection:
    """Pack numbers to four decimals, in 16 bits if all fit, else in 32 bits, else as exact float32."""
    check_finite(name, values)
    whole = steps(values)
    largest = np.abs(whole).max(initial=0)
    for kind, dtype, limit in ROUNDED:
        if largest <= limit:
            return _section(name, kind, whole.astype(dtype))
    return pack_exact(name, values)


def pack_exact(name: str, values: np.ndarray) -> PackedSection:
    check_finite(name, values)
    return _section(name, "float32", values.astype("<f4"))


def pack_whole(name: str, values: np.ndarray) -> PackedSection:
    return _section(name, "whole32", values.astype("<i4"))


def pack_text(name: str, content: str) -> PackedSection:
    return PackedSection(name, "text", (1,), _encode(content.encode("utf-8")))


def _section(name: str, kind: str, values: np.ndarray) -> PackedSection:
    planes = np.frombuffer(values.tobytes(), np.uint8).reshape(values.size, values.itemsize).T
    return PackedSection(name, kind, values.shape, _encode(planes.tobytes()))


def _encode(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, COMPRESSION, mtime=0)).decode("ascii")


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
        return size_of([*self.sections, *self.rest])


def choose(traced: TracedPass, room: int, limit: int) -> Contents:
    """The sections that fit into `room` bytes of a page that may have `limit` bytes."""
    contents = Contents(sections=list(needed(traced)))
    if len(traced.lens.ids[0]) < len(traced.ids):
        contents.cut.append(
            f"The logit lens is kept for the last {len(traced.lens.ids[0])} of {len(traced.ids)} positions."
        )
    reason = f"since the page would pass {in_megabytes(limit)}"
    add_attention(contents, traced, room, reason)
    for words, groups in optional(traced):
        kept = 0
        for group in groups:
            if contents.size + size_of(group) > room:
                break
            contents.rest += group
            kept += 1
        if kept < len(groups):
            rest = f"; kept for the first {kept} of {len(groups)}" if kept else ""
            contents.cut.append(f"Left out, {reason}: {words}{rest}.")
    return contents


def size_of(sections: list[PackedSection]) -> int:
    return sum(len(section.content) for section in sections)


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
    for name in ("probabilities", "logits", "following"):
        yield pack_rounded(f"lens.{name}", getattr(lens, name))
    yield pack_whole("lens.ranks", lens.ranks)
    if traced.memory is not None:
        for kind, layers in (("cross", traced.memory.cross), ("encoder", traced.memory.encoder)):
            for layer, weights in enumerate(layers):
                yield pack_weights(f"memory.{kind}.{layer}", weights)


def add_attention(contents: Contents, traced: TracedPass, room: int, reason: str) -> None:
    """Add the attention of every head; of the last queries only if all rows are too large."""
    T = len(traced.ids)
    sections = [attention_section(traced, layer, 0) for layer in range(len(traced.attention))]
    while contents.size + size_of(sections) > room and contents.first_query < T - 1:
        share = MARGIN * max(0, room - contents.size) / size_of(sections)
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


def optional(traced: TracedPass) -> Iterator[tuple[str, list[list[PackedSection]]]]:
    """In this order: what it is in words, and groups of sections that are kept or left out together."""
    embeddings = [pack_rounded("embed.sum", traced.streams[0])]
    if traced.positions is not None:
        embeddings += [pack_rounded("embed.words", traced.words), pack_rounded("embed.positions", traced.positions)]
    yield "word and position vectors", [embeddings]
    head = {"final": traced.streams[-1], "head.rows": traced.rows, "head.biases": traced.row_biases}
    # Exact: a logit would add up D rounding errors
    exact = [pack_exact(name, values) for name, values in head.items()]
    yield "the vectors that the head reads, and its rows", [exact]
    points = [[pack_rounded(f"stream.{index}", traced.streams[index])] for index in range(1, len(traced.points))]
    yield "the stream's vectors, place by place", points
    layers = enumerate(zip(traced.queries, traced.keys, strict=True))
    pairs = [[pack_rounded(f"queries.{i}", queries), pack_rounded(f"keys.{i}", keys)] for i, (queries, keys) in layers]
    yield "queries and keys, layer by layer", pairs

"""`write_page(model, text, path)`: one self-contained HTML file that shows a forward pass and needs no network.

Numbers are whole multiples of 0.0001 in 16 or 32 bits if they fit, else exact float32. Bytes are stored in planes, all
lowest bytes first and all highest last: high bytes are nearly alike, and gzip compresses them better next to each
other.

Required: tokens, vocabulary, logits of the last position, norms of the stream, the lens, attention of every head, to a
memory too. If these are too large, attention keeps only the last query rows that fit. Optional, in this order:
embeddings, the head's inputs and rows, the stream's vectors point by point, queries and keys layer by layer. A part
that does not fit is left out and reported; a later, smaller one may still fit.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote

import numpy as np

from foretell.errors import OutputError
from foretell.files import HTML_MARK, check_target, write_text
from foretell.insight.page.collect import TracedPass, check_finite, collect, steps
from foretell.language_model import LanguageModel

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


PLAIN = " !$'()*+,-./:;=?@[]^_`{|}~&"  # characters that need no escape in a data URL; # and line ends do

FOLDER = files("foretell.insight.page").joinpath("assets")
MARK = re.compile(r"{{(\w+)}}")


def assemble(
    name: str, structure: dict[str, Any], sections: Iterable[PackedSection], rest: Iterable[PackedSection]
) -> str:
    """The whole document. It fetches nothing, and no user text becomes markup."""
    parts = {
        "title": f"{escape(printable(name))} · foretell",
        "heading": escape(printable(name)),
        "style": read("style.css"),
        "imports": as_script({"imports": module_addresses()}),
        "structure": as_script(structure),
        "sections": holders(sections),
        "rest": holders(rest),
    }
    return MARK.sub(lambda mark: parts[mark[1]], read("page.html"))


def holders(sections: Iterable[PackedSection]) -> str:
    """One element per section, which a browser neither runs nor displays."""
    return "\n".join(
        f'<script type="text/plain" id="{section.name}">{section.content}</script>' for section in sections
    )


def module_addresses() -> dict[str, str]:
    """The import map: every module's import name and its content as a data URL, since there is no server."""
    names = sorted(file.name for file in FOLDER.iterdir() if file.name.endswith(".js"))
    modules = {name: f"{read(name)}//# sourceURL=page/{name}\n" for name in names}
    urls = {name: quote(module, safe=PLAIN) for name, module in modules.items()}
    return {f"page/{name}": f"data:text/javascript;charset=utf-8,{url}" for name, url in urls.items()}


def as_script(value: Any) -> str:
    """JSON for the inside of a script element: it cannot end the element or begin a comment."""
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return content.replace("<", "\\u003c").replace("\x7f", "\\u007f")


def printable(text: str) -> str:
    """One line without control characters, which HTML does not allow."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def read(name: str) -> str:
    return FOLDER.joinpath(name).read_text(encoding="utf-8")


FORMAT = "foretell.page/1"
# Bytes per section besides its content, for its element, its line in the structure and a sentence if it is cut
SECTION_MARKUP = 200


@dataclass(frozen=True, repr=False)
class PageReport:
    """The written page: size in bytes, counts of tokens, layers and heads, and a sentence about each thing left out."""

    path: str
    bytes: int
    tokens: int
    layers: int
    heads: int
    cut: list[str]

    def __str__(self) -> str:
        shape = f"{self.tokens} tokens, {self.layers} layers, {self.heads} heads per layer"
        return f"{self.path}: {shape}, {in_megabytes(self.bytes)}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        link = f'<a href="{escape(quote(self.path))}" target="_blank">{escape(self.path)}</a>'
        return f"<p>{link}{escape(str(self).removeprefix(self.path))}</p>"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write_page(model: LanguageModel, text: str, path: str | Path, budget_bytes: int = DEFAULT_BYTES) -> PageReport:
    """Write the page of one pass over a text, atomically; an existing file is replaced.

    Raises UsageError for an empty text, ContextLengthError for one that is too long, and OutputError if the file cannot
    be written, the model computes numbers that are not finite, or no page fits `budget_bytes`.
    """
    check_target(Path(path), HTML_MARK)
    return write_traced(collect(model, text), path, budget_bytes)


def write_traced(traced: TracedPass, path: str | Path, budget_bytes: int = DEFAULT_BYTES) -> PageReport:
    """Write the page of a pass that was collected before."""
    target = check_target(Path(path), HTML_MARK)
    contents, document = make_page(traced, budget_bytes)
    write_text(target, document)
    size = len(document.encode("utf-8"))
    return PageReport(str(path), size, len(traced.ids), traced.config.num_layers, traced.config.num_heads, contents.cut)


def page_html(model: LanguageModel, text: str, budget_bytes: int = DEFAULT_BYTES) -> str:
    """The document that `write_page` writes, as a string."""
    return make_page(collect(model, text), budget_bytes)[1]


def make_page(traced: TracedPass, budget_bytes: int) -> tuple[Contents, str]:
    """The contents of a page, and the document. Raises `OutputError` if it does not fit the budget."""
    of_memory = 0 if traced.memory is None else len(traced.memory.cross) + len(traced.memory.encoder)
    most_sections = 3 * traced.config.num_layers + len(traced.points) + of_memory + 20
    frame = len(document_of(traced, Contents()).encode("utf-8")) + SECTION_MARKUP * most_sections
    contents = choose(traced, budget_bytes - frame, budget_bytes)
    document = document_of(traced, contents)
    size = len(document.encode("utf-8"))
    if size > budget_bytes:
        raise OutputError(
            f"the page needs {in_megabytes(size)} and may have {in_megabytes(budget_bytes)}; give a shorter text"
        )
    return contents, document


def document_of(traced: TracedPass, contents: Contents) -> str:
    return assemble(heading_of(traced.name), structure_of(traced, contents), contents.sections, contents.rest)


def heading_of(name: str) -> str:
    """A model's name; of an absolute path the last part only, since a page is passed on."""
    for path in (PurePosixPath(name), PureWindowsPath(name)):
        if path.is_absolute() and path.name:
            return path.name
    return name


def structure_of(traced: TracedPass, contents: Contents) -> dict[str, Any]:
    """The unpacked data: the text and its tokens, the shape of the model, and the list of sections."""
    config, memory = traced.config, {}
    if traced.memory is not None:
        memory["memory"] = {
            "tokens": token_list(traced.memory.ids, traced.memory.pieces),
            "layers": len(traced.memory.encoder),
        }
    return {
        "format": FORMAT,
        "model": heading_of(traced.name),
        "text": traced.text,
        "tokens": token_list(traced.ids, traced.pieces),
        "shape": {
            "layers": config.num_layers,
            "heads": config.num_heads,
            "groups": config.num_kv_heads,
            "width": config.width,
            "headWidth": config.head_width,
            "vocabulary": len(traced.vocabulary),
        },
        "windows": config.windows,
        "position": config.position,
        "places": [asdict(point) for point in traced.points],
        "lensPlaces": traced.lens_points,
        "lensFrom": len(traced.ids) - len(traced.lens.ids[0]),
        "rowIds": traced.row_ids,
        "firstQuery": contents.first_query,
        "cut": contents.cut,
        "sections": [section.to_json() for section in contents.sections],
        "rest": [section.to_json() for section in contents.rest],
        **memory,
    }


def token_list(ids: list[int], pieces: list[str]) -> list[dict[str, Any]]:
    return [{"id": token_id, "text": piece} for token_id, piece in zip(ids, pieces, strict=True)]

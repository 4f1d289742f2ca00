"""`write_page(model, text, path)`: one self-contained HTML file that shows a forward pass and needs no network.

Every page needs tokens, vocabulary, logits of the last position, norms of the stream, the lens, and the attention of
every head, also to a memory. If these are too large, attention keeps only the last query rows that fit. Other sections
follow in the order of the registry. Those that do not fit are left out and reported; a later, smaller one may still
fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from foretell.errors import OutputError, as_path, check_count, counted
from foretell.insight.page.block_sections import last_written
from foretell.insight.page.family import Family, Index
from foretell.insight.page.outline import heading_of, model_outline, pass_outline
from foretell.insight.page.packing import PackedSection, pack_weights
from foretell.insight.page.page_pass import PageModel, PagePass
from foretell.insight.page.sections import ATTENTION, FAMILIES, values_of_file
from foretell.insight.readout import TaskReadout
from foretell.language_model import LanguageModel
from foretell.storage.files import GENERATOR, check_target, write_text
from foretell.typesetting.text import printable

PAGE_BYTES = 20_000_000
MARGIN = 0.97  # share of the rows that the mean compression suggests, because rows and layers compress differently


@dataclass
class Contents:
    """The sections of a page, a sentence about each omission, and the first query whose attention is kept.

    The page becomes interactive when `sections` are loaded; `rest` follows its script and is loaded later.
    """

    sections: list[PackedSection] = field(default_factory=list)
    rest: list[PackedSection] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    first_query: int = 0
    remarks: list[str] = field(default_factory=list)
    choice: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return size_of([*self.sections, *self.rest])


def choose(traced: PagePass, room: int, limit: int) -> Contents:
    """The sections that fit into `room` bytes of a page of at most `limit` bytes."""
    contents = Contents(sections=list(required(traced)), cut=kept_positions(traced))
    reason = f"since the page would exceed {in_megabytes(limit)}"
    add_attention(contents, traced, room, reason)
    for words, families in groupby((family for family in FAMILIES if family.left_out), lambda family: family.left_out):
        groups, kept = groups_of(list(families), traced), 0
        for group in groups:
            if not traced.has(name for family, index in group for name in family.needs(traced.page, index)):
                break
            sections = [family.section(traced, index) for family, index in group]
            if contents.size + size_of(sections) > room:
                break
            contents.rest += sections
            kept += 1
        if kept < len(groups):
            rest = f"; kept for the first {kept} of {len(groups)}" if kept else ""
            contents.cut.append(f"Left out, {reason}: {words}{rest}.")
    return contents


def required(traced: PagePass) -> Iterator[PackedSection]:
    """The sections that every page needs, except attention."""
    for family in FAMILIES:
        if not family.left_out:
            yield from (family.section(traced, index) for index in family.indices(traced.page))


def kept_positions(traced: PagePass) -> list[str]:
    """Sentences about values that are computed only for the last positions."""
    total = len(traced.ids)
    kept = {"The logit lens is": total - traced.lens_from, "The tokens that neurons write are": last_written(traced)}
    return [
        f"{words} kept for the last {count} of {total:,} positions." for words, count in kept.items() if count < total
    ]


def groups_of(families: list[Family], traced: PagePass) -> list[list[tuple[Family, Index]]]:
    """The sections of families that are kept or left out together."""
    groups: dict[Any, list[tuple[Family, Index]]] = {}
    for family in families:
        for index in family.file_indices(traced.page, len(traced.ids)):
            groups.setdefault(family.group(index), []).append((family, index))
    return list(groups.values())


def size_of(sections: list[PackedSection]) -> int:
    return sum(len(section.content) for section in sections)


def in_megabytes(size: int) -> str:
    """`19.9 MB`, or kB below one MB."""
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def add_attention(contents: Contents, traced: PagePass, room: int, reason: str) -> None:
    """Add the attention of every head; of the last queries only if all rows are too large."""
    T, layers = len(traced.ids), range(traced.page.config.num_layers)
    sections = [attention_section(traced, layer, 0) for layer in layers]
    while contents.size + size_of(sections) > room and contents.first_query < T - 1:
        share = MARGIN * max(0, room - contents.size) / size_of(sections)
        kept = int((T - contents.first_query) * share)  # later rows are longer, so this needs a few rounds
        contents.first_query = T - max(1, kept)
        sections = [attention_section(traced, layer, contents.first_query) for layer in layers]
    if contents.first_query:
        contents.cut.append(
            f"Attention is kept for the last {T - contents.first_query} of {T} query positions, {reason}."
        )
    contents.sections += sections


def attention_section(traced: PagePass, layer: int, first_query: int) -> PackedSection:
    """The weights of one layer from `first_query` on."""
    window = traced.page.config.windows[layer] or len(traced.ids)
    skipped = sum(min(query + 1, window) for query in range(first_query))
    return pack_weights(ATTENTION.section_name(layer), traced.attention(layer)[:, skipped:])


PLAIN = " !\"$'()*+,-./:;=>?@[]^_`{|}~&"  # characters that need no escape in a data URL; # and line ends do

FOLDER = files("foretell.insight.page").joinpath("assets")
MARK = re.compile(r"{{(\w+)}}")


def document_of(traced: PagePass, contents: Contents) -> str:
    """The whole document of a file. It fetches nothing, and no user text becomes markup."""
    head = f"""<link rel="icon" href="data:,">
<style>
{read("style.css")}
</style>
<script type="importmap">{as_script({"imports": module_addresses()})}</script>"""
    data = f"""<script type="application/json" id="structure">{as_script(structure_of(traced, contents))}</script>
{holders(contents.sections)}
<script type="module" async>
import {{ start }} from "page/main.js";
start();
</script>
{holders(contents.rest)}"""
    return document(printable(heading_of(traced.page.model.name)), head, data)


def document(heading: str, head: str, data: str) -> str:
    """The page's markup under a heading, with the markup of its head and of its data."""
    parts = {"generator": GENERATOR, "heading": escape(heading), "head": head, "data": data}
    return MARK.sub(lambda mark: parts[mark[1]], read("page.html"))


def holders(sections: Iterable[PackedSection]) -> str:
    """An element per section, which browsers neither run nor display."""
    return "\n".join(
        f'<script type="text/plain" id="{section.name}">{section.content}</script>' for section in sections
    )


def module_addresses() -> dict[str, str]:
    """The import map: each module's import name, with its content as a data URL, because there is no server."""
    names = sorted(file.name for file in FOLDER.iterdir() if file.name.endswith(".js"))
    modules = {name: f"{absolute_imports(read(name))}//# sourceURL=page/{name}\n" for name in names}
    urls = {name: quote(module, safe=PLAIN) for name, module in modules.items()}
    return {f"page/{name}": f"data:text/javascript;charset=utf-8,{url}" for name, url in urls.items()}


def absolute_imports(module: str) -> str:
    """A module with its imports replaced by names of the import map, because data URLs have no relative paths."""
    return re.sub(r'from "\./', 'from "page/', module)


def as_script(value: Any) -> str:
    """JSON for a script element, escaped so that it cannot end the element or begin a comment."""
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return content.replace("<", "\\u003c").replace("\x7f", "\\u007f")


def read(name: str) -> str:
    return FOLDER.joinpath(name).read_text(encoding="utf-8")


# Bytes per section in addition to its content: its element, its line in the structure and a sentence if left out
SECTION_MARKUP = 200


@dataclass(frozen=True, repr=False)
class PageReport:
    """The written page: size in bytes, numbers of tokens, layers and heads, and a sentence about each omission."""

    path: str
    bytes: int
    tokens: int
    layers: int
    heads: int
    cut: list[str]

    def __str__(self) -> str:
        tokens, layers = counted(self.tokens, "token"), counted(self.layers, "layer")
        heads = f"{counted(self.heads, 'head')} per layer"
        return f"{self.path}: {tokens}, {layers}, {heads}, {in_megabytes(self.bytes)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        link = f'<a href="{escape(quote(self.path))}" target="_blank">{escape(self.path)}</a>'
        return f"<p>{link}{escape(str(self).removeprefix(self.path))}</p>"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write_page(
    model: LanguageModel,
    text: str,
    path: str | Path,
    budget_bytes: int = PAGE_BYTES,
    readout: TaskReadout | None = None,
    *,
    overwrite: bool = False,
) -> PageReport:
    """Write the page of one pass over a text, atomically. overwrite: also over a file that is not an earlier page.

    readout: the head of a tuned model (`label_attribution.readout_of`).

    Raises UsageError for an empty text, ContextLengthError for one that is too long, and OutputError if the file cannot
    be written, the model computes numbers that are not finite, or no page fits `budget_bytes`.
    """
    target = check_target(as_path("the path", path), overwrite=overwrite)
    return write_traced(record_all(model, text, readout), path, target, budget_bytes)


def record_all(
    model: LanguageModel, text: str, readout: TaskReadout | None = None, levels: np.ndarray | None = None
) -> PagePass:
    """A pass over a text with the values for all sections of a file."""
    page, ids = PageModel.of(model, readout, levels), model.encode_fitting(text)
    return page.record(ids, text, values_of_file(page, len(ids)))


def write_traced(traced: PagePass, path: str | Path, target: Path, budget_bytes: int = PAGE_BYTES) -> PageReport:
    """Write the page of an existing pass into `target`, which `check_target` made of the path."""
    contents, document = make_page(traced, budget_bytes)
    write_text(target, document)
    size = len(document.encode("utf-8"))
    config = traced.page.config
    return PageReport(str(path), size, len(traced.ids), config.num_layers, config.num_heads, contents.cut)


def page_html(model: LanguageModel, text: str, budget_bytes: int = PAGE_BYTES) -> str:
    """The document that `write_page` writes, as a string."""
    return make_page(record_all(model, text), budget_bytes)[1]


def make_page(
    traced: PagePass,
    budget_bytes: int = PAGE_BYTES,
    remarks: Iterable[str] = (),
    choice: Mapping[str, int] | None = None,
) -> tuple[Contents, str]:
    """The contents of a page, and the document.

    remarks: sentences about the pass for the end of the page. choice: the token, layer, ... that the page shows first.

    Raises `OutputError` if it does not fit the budget.
    """
    check_count("budget_bytes", budget_bytes)
    page, tokens = traced.page, len(traced.ids)
    most_sections = sum(len(family.file_indices(page, tokens)) for family in (*FAMILIES, ATTENTION))
    frame = len(document_of(traced, Contents()).encode("utf-8")) + SECTION_MARKUP * most_sections
    contents = choose(traced, budget_bytes - frame, budget_bytes)
    contents.remarks, contents.choice = list(remarks), dict(choice or {})
    document = document_of(traced, contents)
    size = len(document.encode("utf-8"))
    if size > budget_bytes:
        raise OutputError(
            f"the page needs {in_megabytes(size)} and may have {in_megabytes(budget_bytes)}; give a shorter text"
        )
    return contents, document


def structure_of(traced: PagePass, contents: Contents) -> dict[str, Any]:
    """The unpacked data of a file: the pass, what was left out, and the list of sections."""
    return {
        **model_outline(traced.page),
        **pass_outline(traced),
        "firstQuery": contents.first_query,
        "choice": contents.choice,
        "remarks": contents.remarks,
        "cut": contents.cut,
        "sections": [section.to_json() for section in contents.sections],
        "rest": [section.to_json() for section in contents.rest],
    }

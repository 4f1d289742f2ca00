"""The page's own files: a template, a style and ES modules, put together into one document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from foretell.errors import OutputError
from foretell.files import check_target, write_text
from foretell.insight.page.collect import TracedPass, collect
from foretell.insight.page.fit import DEFAULT_BYTES, Contents, choose, in_megabytes
from foretell.insight.page.pack import PackedSection
from foretell.language_model import LanguageModel

PLAIN = " !$'()*+,-./:;=?@[]^_`{|}~&"  # may stand in an address as they are; not # and line ends, which it would lose

FOLDER = files("foretell.insight.page").joinpath("assets")
MARK = re.compile(r"{{(\w+)}}")


def assemble(
    name: str, structure: dict[str, Any], sections: Iterable[PackedSection], rest: Iterable[PackedSection]
) -> str:
    """The whole document: nothing in it is fetched, and no text of a user is ever part of its markup."""
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
    """An element for each section, which a browser neither runs nor shows."""
    return "\n".join(f'<script type="text/plain" id="{one.name}">{one.content}</script>' for one in sections)


def module_addresses() -> dict[str, str]:
    """Every module under the name by which the others import it; an import map takes the place of a server."""
    names = sorted(file.name for file in FOLDER.iterdir() if file.name.endswith(".js"))
    return {f"page/{name}": address(f"{read(name)}//# sourceURL=page/{name}\n") for name in names}


def address(module: str) -> str:
    """A module as an address that holds it."""
    return f"data:text/javascript;charset=utf-8,{quote(module, safe=PLAIN)}"


def as_script(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element, or begin a comment."""
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return content.replace("<", "\\u003c").replace("\x7f", "\\u007f")


def printable(text: str) -> str:
    """One line without control characters, which HTML does not allow."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def read(name: str) -> str:
    """The content of one of the page's files."""
    return FOLDER.joinpath(name).read_text(encoding="utf-8")


FORMAT = "foretell.page/1"


@dataclass(frozen=True)
class PageReport:
    """What was written: size in bytes, how many tokens, layers and heads, and what the page says is left out."""

    path: str
    bytes: int
    tokens: int
    layers: int
    heads: int
    cut: list[str]

    def __str__(self) -> str:
        shape = f"{self.tokens} tokens, {self.layers} layers, {self.heads} heads a layer"
        return f"{self.path}: {shape}, {in_megabytes(self.bytes)}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write_page(model: LanguageModel, text: str, path: str | Path, budget_bytes: int = DEFAULT_BYTES) -> PageReport:
    """Write the page of one pass over a text; the file appears whole or not at all, and replaces one of that name.

    Raises UsageError for an empty text, ContextLengthError for one that is too long, OutputError where nothing can be
    written, where the model computes no finite numbers, or where `budget_bytes` is too little for any page.
    """
    target = check_target(Path(path))
    seen = collect(model, text)
    contents, document = make_page(seen, budget_bytes)
    write_text(target, document)
    size = len(document.encode("utf-8"))
    return PageReport(str(path), size, len(seen.ids), seen.config.num_layers, seen.config.num_heads, contents.cut)


def page_html(model: LanguageModel, text: str, budget_bytes: int = DEFAULT_BYTES) -> str:
    """The document that `write_page` writes."""
    return make_page(collect(model, text), budget_bytes)[1]


def make_page(seen: TracedPass, budget_bytes: int) -> tuple[Contents, str]:
    """What a page holds, and the page, which is no larger than the budget."""
    frame = len(document_of(seen, Contents()).encode("utf-8")) + SECTION_MARKUP * section_count(seen)
    contents = choose(seen, budget_bytes - frame, budget_bytes)
    document = document_of(seen, contents)
    size = len(document.encode("utf-8"))
    if size > budget_bytes:
        raise OutputError(
            f"the page needs {in_megabytes(size)} and may have {in_megabytes(budget_bytes)}; give a shorter text"
        )
    return contents, document


# Bytes around a section's content: its element and its line in the structure; and a few sentences on what was cut
SECTION_MARKUP = 200


def section_count(seen: TracedPass) -> int:
    """More sections than a page of this pass can have."""
    return 3 * seen.config.num_layers + len(seen.places) + 20


def document_of(seen: TracedPass, contents: Contents) -> str:
    """The document with these contents."""
    return assemble(seen.name, structure_of(seen, contents), contents.sections, contents.rest)


def structure_of(seen: TracedPass, contents: Contents) -> dict[str, Any]:
    """All that is not packed: the text and its tokens, the shape of the model, and what lies where."""
    config = seen.config
    return {
        "format": FORMAT,
        "model": seen.name,
        "text": seen.text,
        "tokens": [{"id": token, "text": piece} for token, piece in zip(seen.ids, seen.pieces, strict=True)],
        "shape": {
            "layers": config.num_layers,
            "heads": config.num_heads,
            "groups": config.num_kv_heads,
            "width": config.width,
            "headWidth": config.head_width,
            "vocabulary": len(seen.vocabulary),
        },
        "windows": config.windows,
        "position": config.position,
        "places": [{"name": place.name, "label": place.label, "layer": place.layer} for place in seen.places],
        "lensPlaces": seen.lens_places,
        "lensFrom": len(seen.ids) - len(seen.lens.ids[0]),
        "rowIds": seen.row_ids,
        "firstQuery": contents.first_query,
        "cut": contents.cut,
        "sections": [section.to_json() for section in contents.sections],
        "rest": [section.to_json() for section in contents.rest],
    }

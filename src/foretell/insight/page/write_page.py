"""`write_page(model, text, path)`: one self-contained HTML file that shows a forward pass and needs no network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote

from foretell.errors import OutputError
from foretell.files import HTML_MARK, check_target, write_text
from foretell.insight.page.collect import TracedPass, collect
from foretell.insight.page.pack import DEFAULT_BYTES, Contents, PackedSection, choose, in_megabytes
from foretell.language_model import LanguageModel

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

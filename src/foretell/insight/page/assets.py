"""The page's own files: a template, a style and ES modules, put together into one document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from foretell.insight.page.pack import Section

PLAIN = " !$'()*+,-./:;=?@[]^_`{|}~&"  # may stand in an address as they are; not # and line ends, which it would lose

FOLDER = files("foretell.insight.page").joinpath("assets")
MARK = re.compile(r"{{(\w+)}}")


def assemble(name: str, structure: dict[str, Any], sections: Iterable[Section], rest: Iterable[Section]) -> str:
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


def holders(sections: Iterable[Section]) -> str:
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

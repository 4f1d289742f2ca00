"""The format of help: a column of names and a column of descriptions, up to the terminal's width."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

LEAST, MOST = 9, 24  # limits of the width of names; a longer name has its description below
WIDE = 100  # maximum width of a line


class HelpInColumns:
    """Plain text without colors or boxes, for cyclopts."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        if not panel.entries:
            return
        rows = [(names(entry), description(console, entry)) for entry in panel.entries]
        column = min(MOST, max(LEAST, *(len(name) for name, _ in rows))) + 4
        put(console, f"{_rendered(console, panel.title)}:")
        for name, about in rows:
            lines = textwrap.wrap(about, width(console) - column, break_on_hyphens=False) or [""]
            first = [f"  {name}"] if len(name) + 4 > column else [f"  {name}".ljust(column) + lines.pop(0)]
            put(console, "\n".join(first + [" " * column + line for line in lines]))
        put(console)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        put(console, f"Usage: {_rendered(console, usage).removeprefix('Usage: ')}", "")

    def render_description(self, console: Console, options: ConsoleOptions, text: Any) -> None:
        """Fill the paragraphs, except indented ones."""
        for paragraph in _rendered(console, text).split("\n\n"):
            is_kept = paragraph.startswith(" ")
            filled = textwrap.fill(paragraph, width(console), break_on_hyphens=False, break_long_words=False)
            put(console, paragraph if is_kept else filled, "")


def names(entry: HelpEntry) -> str:
    return ", ".join(entry.display_labels_with_metavar)


def description(console: Console, entry: HelpEntry) -> str:
    facts = [" ".join(_rendered(console, entry.description).split())]
    choices = entry.choices or ()
    facts += [] if all(choice in facts[0] for choice in choices) else [f"[choices: {', '.join(choices)}]"]
    facts += [f"[default: {entry.default}]"] if entry.default is not None else []
    return " ".join([*facts, *(["[required]"] if entry.required else [])])


def _rendered(console: Console, renderable: Any) -> str:
    """The text of any rich renderable, without styles, in as few lines as possible."""
    wide = console.options.update(width=10_000)
    segments = console.render(renderable, wide) if renderable else []
    return "\n".join(line.rstrip() for line in "".join(each.text for each in segments).strip("\n").split("\n"))


def width(console: Console) -> int:
    return min(WIDE, console.width)


def put(console: Console, *lines: str) -> None:
    console.print("\n".join(lines), highlight=False, markup=False, emoji=False, soft_wrap=True)

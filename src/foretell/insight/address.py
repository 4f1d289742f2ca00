"""Addresses of single numbers: a trace name and an index, `trunk.blocks.0.attention.core.weights[1,3,2]`."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from foretell.errors import UsageError

ADDRESS = re.compile(r"(?P<name>[^\[\]\s]+)\s*(?:\[(?P<index>.*)\])?", re.DOTALL)

Index = tuple[int | str, ...]


@dataclass(frozen=True)
class Address:
    """A name, and where in its value to look; an entry that is text stands for the token of that text."""

    name: str
    index: Index = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(repr, self.index))}]" if self.index else self.name


def parse_address(text: str) -> Address:
    """`name[1,-1,'!']`; whatever is not of this form is a `UsageError`."""
    found = ADDRESS.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"'{text}' is no address; write a name and an index, such as head[0,3]")
    inside = found["index"]
    return Address(found["name"], () if inside is None else _parse_index(inside, text))


def _parse_index(inside: str, text: str) -> Index:
    try:
        entries: list = list(ast.literal_eval(f"({inside},)"))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        entries = [None]
    if not all(type(entry) in (int, str) for entry in entries):  # True and False are of type bool
        raise UsageError(f"the index of '{text}' is not made of whole numbers or of tokens in quotes, as in [4,'!']")
    return tuple(entries)

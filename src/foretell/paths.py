"""Globs over module paths: one way to say which modules, weights or values are meant, wherever that is to be said.

`*` stands for one segment or a part of one, `**` for any number of segments, none included:
`trunk.blocks.*.attention` are the attentions of all blocks, `**.query` everything that is called query.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from foretell.errors import UsageError

SUGGESTIONS = 3


def select(globs: str | Iterable[str], names: Sequence[str]) -> list[str]:
    """The names that any of the globs matches, in the order of `names`; a glob without a match is a `UsageError`."""
    patterns = [globs] if isinstance(globs, str) else list(globs)
    for glob in patterns:
        if not any(matches(glob, name) for name in names):
            raise UsageError(f"nothing here is named '{glob}'{suggest(glob, names)}")
    return [name for name in names if any(matches(glob, name) for glob in patterns)]


def matches(glob: str, name: str) -> bool:
    """Does the whole name match?"""
    return _compile(glob).fullmatch(f"{name}.") is not None


def suggest(name: str, names: Iterable[str]) -> str:
    """`; near it: a, b` for the names, or globs of names, that are spelled alike."""
    known = list(dict.fromkeys(form for known in names for form in _forms(known)))
    near = difflib.get_close_matches(name, known, n=SUGGESTIONS, cutoff=0.6)
    return f"; near it: {', '.join(near)}" if near else ""


def starred(name: str) -> str:
    """The name with every number in it replaced by `*`."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _forms(name: str) -> tuple[str, ...]:
    return name, starred(name), f"**.{name.rpartition('.')[2]}"


@lru_cache(maxsize=256)
def _compile(glob: str) -> re.Pattern[str]:
    """Every segment of a name ends in a dot here, the last one too, so that `**` needs no special place."""
    return re.compile("".join(_segment(part) for part in glob.split(".")))


def _segment(part: str) -> str:
    if part == "**":
        return r"(?:[^.]+\.)*"
    return re.escape(part).replace(r"\*", "[^.]*") + r"\."

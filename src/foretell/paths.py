"""Globs over module paths, which select modules, weights and values everywhere.

`*` matches one segment or a part of one, `**` any number of segments, also none: `trunk.blocks.*.attention` matches
the attention of all blocks, `**.query` everything named query.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from foretell.errors import UsageError
from foretell.foreign_names import translate

SUGGESTIONS = 3


def select(globs: str | Iterable[str], names: Sequence[str]) -> list[str]:
    """The names that any glob matches, in the order of `names`; raises `UsageError` for a glob without a match."""
    patterns = [globs] if isinstance(globs, str) else list(globs)
    for glob in patterns:
        if not any(matches(glob, name) for name in names):
            raise UsageError(f"nothing here is named '{glob}'{suggest(glob, names)}")
    return [name for name in names if any(matches(glob, name) for glob in patterns)]


def matches(glob: str, name: str) -> bool:
    """True if the glob matches the whole name."""
    return _compile(glob).fullmatch(f"{name}.") is not None


def suggest(name: str, names: Iterable[str]) -> str:
    """`; near it: a, b` with the most similar names, or globs of names; empty if none is similar.

    A name of Hugging Face or TransformerLens is answered with the name that it has here.
    """
    names = list(names)
    translated = translate(name)
    if translated and any(matches(translated.partition(",")[0], known) for known in names):
        return f"; here it is called {translated}"
    known = list(dict.fromkeys(form for known in names for form in _forms(known)))
    near = difflib.get_close_matches(name, known, n=SUGGESTIONS, cutoff=0.6)
    return f"; near it: {', '.join(near)}" if near else ""


def starred(name: str) -> str:
    """The name with every number replaced by `*`."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _forms(name: str) -> tuple[str, ...]:
    return name, starred(name), f"**.{name.rpartition('.')[2]}"


@lru_cache(maxsize=256)
def _compile(glob: str) -> re.Pattern[str]:
    """In the pattern every segment ends in a dot, also the last, so that `**` needs no special case."""
    return re.compile("".join(_segment(part) for part in glob.split(".")))


def _segment(part: str) -> str:
    if part == "**":
        return r"(?:[^.]+\.)*"
    return re.escape(part).replace(r"\*", "[^.]*") + r"\."

"""Paths on the command line, of every verb: a leading ~ is expanded, and no output is a file that the command reads."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from foretell.cli.arguments import output, text_output
from foretell.errors import ForetellError, OutputError, UsageError, expanded
from foretell.storage.files import has_mark

if TYPE_CHECKING:
    from cyclopts import App, ArgumentCollection


def prepare_paths(app: App, commands: Sequence[str], arguments: ArgumentCollection) -> None:
    """Expand the paths before they are converted, and refuse outputs that are inputs."""
    paths = [argument for argument in arguments if is_path(argument.hint)]
    for argument in paths:
        argument.tokens[:] = [token.evolve(value=expanded(token.value)) for token in argument.tokens]
    outputs = [each for each in paths if each.tokens and each.parameter.converter in (output, text_output)]
    read = {token.value: each in paths for each in arguments if each not in outputs for token in each.tokens}
    for argument in outputs:
        check_not_read(argument.tokens[0].value, read, [word for word, is_data in read.items() if is_data])
    if not outputs and any(each.name == "--overwrite" and each.tokens for each in arguments):
        raise UsageError("--overwrite goes with the name of an output and has no effect here; leave it out")


def is_path(hint: Any) -> bool:
    """True for the type of a path, of an optional path or of several paths."""
    return hint is Path or any(map(is_path, get_args(hint)))


def check_not_read(target: str | Path, words: Iterable[str], folders: Collection[str] = ()) -> None:
    """Refuse to write a file that the command reads: a file of this name, or of a model of this name.

    folders: the words among these that may also be folders of data.
    """
    if not os.path.isfile(target):  # noqa: PTH113 - Path.is_file raises for a text that cannot be a path
        return
    is_own = has_mark(Path(target))  # never read as a part of a folder
    for word in words:
        if os.path.isfile(path := expanded(word)):  # noqa: PTH113
            files = [Path(path)]
        else:
            files = [] if is_own else files_of(word, word in folders)
        if any(file.samefile(target) for file in files):
            raise OutputError(f"could not write {target}: the command reads {word}; give the output another name")


def files_of(word: str, is_data: bool) -> list[Path]:
    """The files of a model with this name, or of a folder of data."""
    from foretell.convert.hub import PREFIX
    from foretell.finding import find_model

    if word.startswith(PREFIX):  # not in a folder of the user's
        return []
    try:
        folder = find_model(word)
    except (ForetellError, ValueError):  # ValueError: a NUL
        folder = Path(word)
        if not is_data or not folder.is_dir():
            return []
    return [path for path in folder.rglob("*") if path.is_file()]

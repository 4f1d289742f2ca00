"""DATA arguments: files, folders, standard input, or the corpus that every Python carries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import STANDARD_INPUT
from foretell.cli.terminal import note

if TYPE_CHECKING:
    from foretell.data.sources import Document
    from foretell.pretraining.prepare import Source

DataArgument = Annotated[
    str,
    Parameter(help="Text, jsonl, json, csv or tsv files, folders of them, or - (none: Python's language reference)."),
]


def text_source(data: Sequence[str], text_field: str | None) -> Source:
    """The documents of the arguments, each time they are asked for; standard input is read once and kept."""
    from foretell.data.corpora import embedded_corpus
    from foretell.data.sources import read_documents

    if not data:
        return embedded_corpus
    paths = ["-" if one == STANDARD_INPUT else one for one in data]
    if "-" in paths:
        kept = list(read_documents(paths, text_field=text_field, say=note))
        return lambda: kept
    seen: set[str] = set()

    def say_once(text: str) -> None:
        if text not in seen:  # the text is read twice: for the vocabulary, and for the tokens
            seen.add(text)
            note(text)

    def documents() -> Iterable[Document]:
        return read_documents(paths, text_field=text_field, say=say_once)

    return documents


def describe_data(data: Sequence[str]) -> str:
    """The arguments as a person would name them."""
    named = ["standard input" if one == STANDARD_INPUT else one for one in data]
    return ", ".join(named) or "the language reference inside Python"

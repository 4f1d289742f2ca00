"""DATA arguments: files, folders, standard input, or the corpus that every Python carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import STANDARD_INPUT

if TYPE_CHECKING:
    from foretell.pretraining.prepare import Source

DataArgument = Annotated[
    str,
    Parameter(help="Text, jsonl, json, csv or tsv files, folders of them, or - (none: Python's language reference)."),
]


def text_source(data: Sequence[str], text_field: str | None) -> Source:
    """The documents of the arguments."""
    from foretell.pretraining.train import make_source

    return make_source(["-" if one == STANDARD_INPUT else one for one in data], text_field)


def describe_data(data: Sequence[str]) -> str:
    """The arguments as a person would name them."""
    named = ["standard input" if one == STANDARD_INPUT else one for one in data]
    return ", ".join(named) or "the language reference inside Python"

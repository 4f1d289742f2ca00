"""Arguments that several verbs share, and the rewriting of what cyclopts does not parse itself."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from foretell.errors import DataError, UsageError

if TYPE_CHECKING:
    from foretell.pretraining.tokens import Source

STANDARD_INPUT = "<stdin>"  # replaces `-`, which cyclopts would take for an option
SECTION_OPTION = re.compile(r"--([a-z]+\.[\w.-]+)(?:=(.*))?", re.DOTALL)

ModelArgument = Annotated[str, Parameter(help="A path, a run's name, primer, or hub:owner/name.")]
TextArgument = Annotated[str, Parameter(help="The text; - reads standard input.")]
DataArgument = Annotated[
    str,
    Parameter(help="Text, jsonl, json, csv or tsv files, folders of them, or - (none: Python's language reference)."),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"],
    Parameter(help="Where to compute: auto, cpu, cuda or mps.", show_choices=False),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"], Parameter(help="Precision: auto, float32 or bfloat16.", show_choices=False)
]
Json = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON.")]
Flag = Parameter(negative="", show_default=False)


def rewrite(arguments: list[str]) -> list[str]:
    """Arguments with `-` replaced by STANDARD_INPUT, and `--model.width 256` by `--set model.width=256`."""
    rewritten: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        section = SECTION_OPTION.fullmatch(argument)
        if argument == "--":
            return [*rewritten, argument, *rest]
        if section:
            value = section[2] if section[2] is not None else next(rest, None)
            if value is None:
                raise UsageError(f"--{section[1]} needs a value")
            rewritten += ["--set", f"{section[1]}={value}"]
        else:
            rewritten.append(STANDARD_INPUT if argument == "-" else argument)
    return rewritten


def read_text(argument: str) -> str:
    """The text of an argument; STANDARD_INPUT is read whole."""
    if argument != STANDARD_INPUT:
        return argument
    if sys.stdin is None:
        raise DataError("standard input is closed; pipe a text into it, or give the text as an argument")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"standard input is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        ) from None


def text_source(data: Sequence[str], text_field: str | None, strict: bool = False) -> Source:
    """The documents of DATA arguments; what the reader reports goes to stderr."""
    from foretell.pretraining.train import make_source

    return make_source(["-" if path == STANDARD_INPUT else path for path in data], text_field, strict)


def describe_data(data: Sequence[str]) -> str:
    """DATA arguments in words."""
    names = ["standard input" if path == STANDARD_INPUT else path for path in data]
    return ", ".join(names) or "the language reference inside Python"


def parse_settings(settings: list[str]) -> dict[str, dict[str, Any]]:
    """`["model.dropout.residual=0.1"]` as nested sections; a value that is not valid TOML is text."""
    sections: dict[str, dict[str, Any]] = {}
    for setting in settings:
        path, _, text = setting.partition("=")
        *parents, key = path.replace("-", "_").split(".")
        section: dict[str, Any] = sections
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise UsageError(f"--{path} and --{path.rpartition('.')[0]} contradict each other")
        section[key] = parse_value(text)
    return sections


def parse_value(text: str) -> Any:
    """A number, boolean or list in TOML's notation; anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text

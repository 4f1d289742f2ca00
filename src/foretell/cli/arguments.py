"""Arguments that several verbs share, and what the command line accepts beyond what a parser knows."""

from __future__ import annotations

import re
import sys
import tomllib
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from foretell.errors import DataError, UsageError

STANDARD_INPUT = "<stdin>"  # stands for `-`, which the parser would take for an option
SECTION_OPTION = re.compile(r"--([a-z]+\.[\w.-]+)(?:=(.*))?", re.DOTALL)

ModelArgument = Annotated[str, Parameter(help="A path, a run's name, primer, or hub:owner/name.")]
TextArgument = Annotated[str, Parameter(help="The text; - reads standard input.")]
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
    """`-` as a name for standard input, and `--model.width 256` as `--set model.width=256`."""
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
    """The text of an argument, from standard input where it says so."""
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


def parse_settings(settings: list[str]) -> dict[str, dict[str, Any]]:
    """`["model.dropout.residual=0.1"]` as nested sections, values read as TOML where they are TOML, else as text."""
    sections: dict[str, dict[str, Any]] = {}
    for setting in settings:
        path, _, text = setting.partition("=")
        *parents, key = path.replace("-", "_").split(".")
        place: dict[str, Any] = sections
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise UsageError(f"--{path} and --{path.rpartition('.')[0]} contradict each other")
        place[key] = parse_value(text)
    return sections


def parse_value(text: str) -> Any:
    """A number, a boolean or a list as TOML writes it; anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text

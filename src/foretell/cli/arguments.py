"""Arguments and option groups that several verbs use: texts, loading a model."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token

from foretell.cli.command_line import STANDARD_INPUT
from foretell.cli.terminal import note
from foretell.config.options import DeviceOptions, help_of, option
from foretell.errors import ConfigError, DataError, UsageError, counted, expanded
from foretell.finetuning.kinds import ChatOptions
from foretell.pretraining.options import TextFields
from foretell.storage.files import TEXT_LIMIT

if TYPE_CHECKING:
    from cyclopts import App, ArgumentCollection


def data_name(kind: Any, tokens: Sequence[Token]) -> str:
    """The name of data as it is given, which may be STANDARD_INPUT; a leading ~ is expanded."""
    return expanded(tokens[0].value)


Model = Annotated[str, Parameter(help="A path, a run's name, primer, or hub:owner/name.")]
Text = Annotated[str | None, Parameter(help="The text; - reads standard input.")]
File = Annotated[Path | None, Parameter(help="Read the text from this UTF-8 file.")]
Ids = Annotated[bool, Parameter(help="The text is token ids, such as '464 3290'.")]
AsTask = Annotated[bool, Parameter(help="For fine-tuned models: wrap TEXT in the task's input format.")]
Pair = Annotated[
    list[str] | None, Parameter(help="For fine-tuned models: the second text, or an answer; may be repeated.")
]
Data = Annotated[
    str,
    Parameter(
        help="Text, jsonl, json, csv or tsv files, folders of them, or - (none: Python's language reference).",
        converter=data_name,
    ),
]
AllowSpecial = Annotated[bool, Parameter(help="Read names like <|endoftext|> as special tokens.")]
StartToken = Annotated[str | None, Parameter(help="Read the text after this special token, such as '<|endoftext|>'.")]
Json = Annotated[bool, Parameter(help="Print JSON.")]
Verify = Annotated[bool, Parameter(help="Compare the weights with their SHA-256.")]
Overwrite = Annotated[bool, Parameter(help="Replace an existing file of any kind.")]


def read_whole_numbers(app: App, commands: Sequence[str], arguments: ArgumentCollection) -> None:
    """Let integers be read by `whole_number`."""
    for argument in arguments:
        if argument.hint in (int, int | None):
            argument.parameter = Parameter.combine(argument.parameter, Parameter(converter=whole_number))


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """An integer; refuses 1.5, which cyclopts would round."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"'{tokens[0].value[:80]}' is not an integer") from None


STANDARD_OUTPUT = Path("<stdout>")  # not Path("-"), which is also ./-, a file


def text_output(kind: Any, tokens: Sequence[Token]) -> Path:
    """The path of a text file to write, or STANDARD_OUTPUT."""
    value = tokens[0].value
    return STANDARD_OUTPUT if value in (STANDARD_INPUT, "-") else Path(value)


def output(kind: Any, tokens: Sequence[Token]) -> Path:
    """The path of a file or folder to write; refuses standard output."""
    if (path := text_output(kind, tokens)) == STANDARD_OUTPUT:
        raise ValueError("this cannot be written to standard output; give a name")
    return path


OUTPUT = Parameter(converter=output)
Output = Annotated[Path | None, OUTPUT]
TextOutput = Annotated[Path | None, Parameter(converter=text_output)]


def at_least_one(kind: Any, value: int | None, least: int = 1) -> None:
    """A validator for counts."""
    if value is not None and value < least:
        raise ValueError(f"{value} is less than {least}")


at_least_zero = partial(at_least_one, least=0)


def usable_template(kind: Any, value: str | None) -> None:
    """A validator for chat templates."""
    from foretell.text.chat_template import find_template

    if value is not None:
        find_template(value)


Template = Annotated[
    str | None,
    Parameter(help=help_of(ChatOptions, "template"), validator=usable_template),
]
Limit = Annotated[
    int | None, Parameter(help="Evaluate only the first N texts, questions, rows or pairs.", validator=at_least_one)
]


def read_text(argument: str | None, file: Path | None = None) -> str:
    """The exact text of an argument, or the prompt on standard input (STANDARD_INPUT) or in a file (`--file`)."""
    if (argument is None) == (file is None):
        raise UsageError("give a TEXT or --file FILE" if file is None else "TEXT and --file exclude each other")
    if argument is not None and argument != STANDARD_INPUT:
        if names_file(argument):
            note(f"'{argument}' is read as text; it is also a file, which --file {argument} reads")
        return argument
    if file is not None:
        return read_named(file)
    from foretell.data.lines import TextFile  # here: a text in an argument needs no decompressors

    return TextFile(None).prompt()


def read_named(file: Path, option: str = "--file", limit: int = TEXT_LIMIT) -> str:
    """The prompt in a file that an option names."""
    from foretell.data.lines import find_file

    try:
        return find_file(file).prompt(limit)
    except DataError as error:
        raise error.at(option) from None


# A text of one word that ends like a file name
LIKE_A_FILE = re.compile(r"\S+\.(csv|tsv|jsonl?|parquet|txt|xlsx?|conll|zip|gz)", re.IGNORECASE)


def is_file(path: Path) -> bool:
    """True for an existing file; a text that cannot be a file name is not one."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def names_file(text: str) -> bool:
    """True for the name of an existing file. Notes a text that looks like the name of a missing file."""
    if is_file(Path(expanded(text))):
        return True
    if LIKE_A_FILE.fullmatch(text):
        note(f"'{text}' is read as a text: there is no such file")
    return False


def refuse_folder(text: str) -> None:
    """Refuse the path of a folder as a text or file, except a single word, which may be a text."""
    if "/" in text and os.path.isdir(expanded(text)):  # noqa: PTH112 - a text may not be a path at all
        raise UsageError(f"{text} is a folder; give a file, or a text")


def input_file(kind: Any, tokens: Sequence[Token]) -> Path:
    """The path of a file or folder; standard input is copied to a file, because it is read several times.

    A file that cannot be opened is refused here, before a model is loaded.
    """
    from foretell.data.lines import find_files, standard_input

    if tokens[0].value != STANDARD_INPUT:
        path = Path(tokens[0].value)
        for file in [] if path.is_dir() else find_files(path)[:1]:
            with file.opened():
                pass
        return path

    content, folder = standard_input().read(), TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "stdin.csv"
    path.write_bytes(content)
    return path


def lines_of(text: str, nothing: str) -> dict[int, str]:
    """The nonblank lines of a text by number; a DataError with the message `nothing` if there are none."""
    all_lines = text.split("\n")
    lines = {number: line for number, line in enumerate(all_lines, start=1) if line.strip()}
    if not lines:
        raise DataError(nothing)
    if blank := len(all_lines) - len(lines):
        note(f"{counted(blank, 'blank line')} left out of {len(all_lines):,}")
    return lines


def paths_of(data: Sequence[str]) -> list[str]:
    """DATA arguments as paths; - is standard input."""
    return ["-" if path == STANDARD_INPUT else path for path in data]


def names_of_data(data: Sequence[str]) -> list[str]:
    """DATA arguments in words."""
    from foretell.data.documents import EMBEDDED_CORPUS

    return ["standard input" if path == STANDARD_INPUT else path for path in data] or [EMBEDDED_CORPUS]


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
        value = parse_value(text)
        first = section.setdefault(key, value)
        if first is not value and first != value:  # NaN is not equal to itself
            raise UsageError(f"{path} has two values, {first} and {value}; give one of them")
    return sections


def parse_value(text: str) -> Any:
    """A number, boolean or list in TOML's notation; anything else is text."""
    from foretell.config.toml import parse_toml

    try:
        return parse_toml(f"value = {text}")["value"]
    except ConfigError:
        return text


def names_of(columns: Sequence[str]) -> tuple[str, ...]:
    """The names in `text,label`."""
    return tuple(name.strip() for names in columns for name in names.split(","))


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(DeviceOptions):
    """Device and precision of any model."""

    quantize: Literal["int8", "int4"] | None = option("Round the weights to int8 or int4 when they are loaded.")
    verify: Verify = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions(LoadingOptions):
    """Device, precision and exactness of a language model."""

    strict: bool = option("Bit-identical results for any batch, with or without a cache; slower.", default=False)


def option_name(field: str) -> str:
    """The name on the command line of the option in a field."""
    return field.removeprefix("is_").strip("_").replace("_", "-")


FLAT = Parameter(name="*", name_transform=option_name)
ONE_COLUMN = Parameter(name="*", name_transform=lambda field: "column" if field == "columns" else option_name(field))
Fields = Annotated[TextFields, FLAT]
ALL_TEXTS = TextFields()
Loading = Annotated[LoadingOptions, Parameter(name="*")]
LOADING_DEFAULTS = LoadingOptions()
Options = Annotated[ModelOptions, Parameter(name="*")]
MODEL_DEFAULTS = ModelOptions()

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
from foretell.cli.terminal import LoadOptions, StrictOptions, note
from foretell.errors import ConfigError, DataError, UsageError, counted, expanded
from foretell.storage.files import TEXT_LIMIT

if TYPE_CHECKING:
    from foretell.config.training import DataConfig
    from foretell.pretraining.tokens import Source


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
TextField = Annotated[str | None, Parameter(help="The field or column with the text.")]
ChoiceColumn = Annotated[list[str] | None, Parameter(help="A column with an answer; may be repeated.")]
ColumnNames = Annotated[str | None, Parameter(help="The columns of a file without a header: text,label.")]
Encoding = Annotated[
    Literal["utf-8", "latin-1", "cp1252"], Parameter(help="utf-8, latin-1 or cp1252.", show_choices=False)
]
DecimalMark = Annotated[
    Literal[".", ","] | None,
    Parameter(help="The decimal mark in labels that are numbers: . or a comma.", show_choices=False),
]
Truncate = Annotated[
    Literal["head", "tail", "middle", "never"] | None,
    Parameter(help="What a text that does not fit loses: tail, head or middle; never: refuse.", show_choices=False),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"],
    Parameter(help="Where to compute: auto, cpu, cuda or mps.", show_choices=False),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"], Parameter(help="Precision: auto, float32 or bfloat16.", show_choices=False)
]
Quantize = Annotated[
    Literal["int8", "int4"] | None,
    Parameter(help="Round the weights to int8 or int4 when they are loaded.", show_choices=False),
]
Strict = Annotated[bool, Parameter(help="Bit-identical results for any batch, with or without a cache; slower.")]
AllowSpecial = Annotated[bool, Parameter(help="Read names like <|endoftext|> as special tokens.")]
StartToken = Annotated[str | None, Parameter(help="Read the text after this special token, such as '<|endoftext|>'.")]
Special = Annotated[
    list[str] | None,
    Parameter(consume_multiple=False, help="A name in the data that is a special token; may be repeated."),
]
Json = Annotated[bool, Parameter(help="Print JSON.")]
Verify = Annotated[bool, Parameter(help="Compare the weights with their SHA-256.")]
Overwrite = Annotated[bool, Parameter(help="Replace an existing file of any kind.")]


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


def whole(help: str, **options: Any) -> Parameter:
    """The parameter of an option that is an integer."""
    return Parameter(help=help, converter=whole_number, **options)


def usable_template(kind: Any, value: str | None) -> None:
    """A validator for chat templates."""
    from foretell.text.chat_template import find_template

    if value is not None:
        find_template(value)


Template = Annotated[
    str | None,
    Parameter(
        help="plain, chatml, alpaca, llama3 or a Jinja file (default: the model's own).", validator=usable_template
    ),
]
Limit = Annotated[
    int | None, whole("Evaluate only the first N texts, questions, rows or pairs.", validator=at_least_one)
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


def text_source(data: Sequence[str], config: DataConfig, strict: bool = False) -> Source:
    """The documents of DATA arguments; the reader's notes go to stderr."""
    from foretell.pretraining.sources import make_source

    return make_source(["-" if path == STANDARD_INPUT else path for path in data], config, strict)


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
        set_once(section, key, parse_value(text), path)
    return sections


def set_once(section: dict[str, Any], key: str, value: Any, path: str) -> None:
    """Set a value; a different value for the same key is a `UsageError`."""
    first = section.setdefault(key, value)
    if first is not value and first != value:  # NaN is not equal to itself
        raise UsageError(f"{path} has two values, {first} and {value}; give one of them")


def parse_value(text: str) -> Any:
    """A number, boolean or list in TOML's notation; anything else is text."""
    from foretell.config.toml import parse_toml

    try:
        return parse_toml(f"value = {text}")["value"]
    except ConfigError:
        return text


def names_of(columns: str | None) -> tuple[str, ...]:
    """The names in `text,label`."""
    return tuple(name.strip() for name in columns.split(",")) if columns else ()


@dataclass(frozen=True)
class TextFields:
    """The texts of records."""

    text_field: TextField = None
    rows: Annotated[bool, Parameter(help="Each line or record is a separate row, never joined with others.")] = False
    prompt_field: Annotated[str | None, Parameter(help="Column with the prompts, of rows in two parts.")] = None
    answer_field: Annotated[str | None, Parameter(help="Column with the answers.")] = None


@dataclass(frozen=True)
class LoadingOptions:
    """Device and precision of any model."""

    device: Device = "auto"
    dtype: Dtype = "auto"
    quantize: Quantize = None
    verify: Verify = False

    def keywords(self) -> LoadOptions:
        return {"device": self.device, "dtype": self.dtype, "quantize": self.quantize, "verify": self.verify}


@dataclass(frozen=True)
class ModelOptions(LoadingOptions):
    """Device, precision and exactness of a language model."""

    strict: Strict = False

    def keywords(self) -> StrictOptions:
        return {**super().keywords(), "strict": self.strict}


Fields = Annotated[TextFields, Parameter(name="*")]
ALL_TEXTS = TextFields()
Loading = Annotated[LoadingOptions, Parameter(name="*")]
LOADING_DEFAULTS = LoadingOptions()
Options = Annotated[ModelOptions, Parameter(name="*")]
MODEL_DEFAULTS = ModelOptions()

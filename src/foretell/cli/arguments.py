"""Arguments that several verbs share, and the rewriting of what cyclopts does not parse itself."""

from __future__ import annotations

import re
import sys
import tomllib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token

from foretell.cli.choice import BY_TASK
from foretell.cli.hints import WITHOUT_VALUE, taken
from foretell.cli.terminal import note
from foretell.errors import DataError, UsageError

if TYPE_CHECKING:
    from foretell.config import DataConfig
    from foretell.language_model import LanguageModel
    from foretell.pretraining.tokens import Source

STANDARD_INPUT = "<stdin>"  # replaces `-`, which cyclopts would take for an option
WITH_SECTIONS = ("train", "finetune", "plan")  # verbs that take --section.key value
SECTION_OPTION = re.compile(r"--[a-z]+\.[\w.-]+")

ModelArgument = Annotated[str, Parameter(help="A path, a run's name, primer, or hub:owner/name.")]
TextArgument = Annotated[str | None, Parameter(help="The text; - reads standard input.", show_default=False)]
FileOption = Annotated[
    Path | None, Parameter(name="--file", help="Read the text from this UTF-8 file instead.", show_default=False)
]
Ids = Annotated[
    bool,
    Parameter(name="--ids", negative="", show_default=False, help="The text is token ids, such as '464 3290'."),
]
AsTask = Annotated[
    bool,
    Parameter(
        negative="", show_default=False, help="Of a tuned model: read TEXT as its head does, in its task's format."
    ),
]
Pair = Annotated[
    list[str] | None,
    Parameter(negative="", show_default=False, help="Of a tuned model: the second text, or an answer; once for each."),
]
DataArgument = Annotated[
    str,
    Parameter(help="Text, jsonl, json, csv or tsv files, folders of them, or - (none: Python's language reference)."),
]
ChoiceColumn = Annotated[list[str] | None, Parameter(negative="", help="A column with an answer; once for each.")]
ColumnNames = Annotated[str | None, Parameter(help="The columns of a file without a header: text,label.")]
Encoding = Annotated[
    Literal["utf-8", "latin-1", "cp1252"], Parameter(help="utf-8, latin-1 or cp1252.", show_choices=False)
]
Truncate = Annotated[
    Literal["head", "tail", "middle"] | None,
    Parameter(help="Leave out the head, tail or middle of what does not fit; default: refuse.", show_choices=False),
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
    Parameter(help="Round the weights to int8 or int4 when they are loaded.", show_choices=False, show_default=False),
]
Strict = Annotated[
    bool,
    Parameter(
        negative="", show_default=False, help="The same bits for a token alone, in any batch and cached; slower."
    ),
]
AllowSpecial = Annotated[
    bool,
    Parameter(negative="", show_default=False, help="Read names like <|endoftext|> as special tokens."),
]
StartToken = Annotated[
    str | None, Parameter(show_default=False, help="Read the text after this special token, such as '<|endoftext|>'.")
]
Special = Annotated[
    list[str] | None,
    Parameter(negative="", consume_multiple=False, help="A name in the data that is a special token; may be repeated."),
]
Json = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON.")]
Verify = Annotated[
    bool,
    Parameter(name="--verify", negative="", show_default=False, help="Compare the weights with their SHA-256."),
]
Flag = Parameter(negative="", show_default=False)
Whole = Parameter(converter=lambda kind, tokens: whole_number(kind, tokens))  # of every option that is an integer


def rewrite(arguments: Sequence[str]) -> list[str]:
    """The command line as cyclopts parses it.

    `-` becomes STANDARD_INPUT, `--model.width 256` becomes `--set model.width=256`, `--resume` alone means
    `--resume auto`. Options of other programs become ours where they mean the same. A --task that chose the function
    (choice.py) is dropped. A number after an option that takes none is refused: it would be read as an argument.
    """
    words = deque(arguments)
    verb = arguments[0] if arguments else ""
    rewritten: list[str] = []
    while words:
        given = words.popleft()
        if given == "--":
            return [*rewritten, given, *words]
        argument = taken(verb, given)
        option, equals, value = argument.partition("=")
        following = value if equals else words[0] if words else ""
        if option in WITHOUT_VALUE.get(verb, {}) and following.isdigit():
            raise UsageError(f"{option} takes no value; {WITHOUT_VALUE[verb][option].format(following)}")
        if verb in WITH_SECTIONS and SECTION_OPTION.fullmatch(option):
            if not equals and not words:
                raise UsageError(f"{given} needs a value")
            rewritten += ["--set", f"{option[2:]}={value if equals else words.popleft()}"]
        elif option == "--task" and following in BY_TASK.get(verb, {}):
            if not equals:
                words.popleft()
        elif argument == "--resume" and (not following or following.startswith("-")):
            rewritten += ["--resume", "auto"]
        else:
            rewritten.append(STANDARD_INPUT if argument == "-" else argument)
    return rewritten


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """An integer; cyclopts alone would round 1.5."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"'{tokens[0].value}' is not an integer") from None


def read_text(argument: str | None, file: Path | None = None) -> str:
    """The text of an argument, of standard input for STANDARD_INPUT, or of the file of `--file`, whole and exact."""
    if (argument is None) == (file is None):
        raise UsageError("give a TEXT or --file FILE" if file is None else "TEXT and --file exclude each other")
    if file is not None:
        return decode_text(read_bytes(file), str(file))
    assert argument is not None
    if argument != STANDARD_INPUT:
        if is_file(Path(argument)):
            note(f"'{argument}' is read as text; it is also a file, which --file {argument} reads")
        return argument
    if sys.stdin is None:
        raise DataError("standard input is closed; pipe a text into it, or give the text as an argument")
    return decode_text(sys.stdin.buffer.read(), "standard input")


def read_bytes(file: Path, option: str = "--file") -> bytes:
    """The content of the file of an option; a DataError where it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{option} {file}: {error.strerror}") from None


def decode_text(content: bytes, source: str) -> str:
    """UTF-8 as text; a DataError with the first byte that is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{source} is not UTF-8: byte {error.start} is {content[error.start]:#04x}") from None


def is_file(path: Path) -> bool:
    """True for an existing file; a text that cannot be a file name is not one."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def task_input(loaded: LanguageModel, others: Sequence[str] | None) -> LanguageModel:
    """A tuned model that reads texts as its head does."""
    from foretell.finetuning.predict import as_task_input

    return as_task_input(loaded, others or ())


def text_source(data: Sequence[str], config: DataConfig, strict: bool = False) -> Source:
    """The documents of DATA arguments; what the reader reports goes to stderr."""
    from foretell.pretraining.tokens import make_source

    return make_source(["-" if path == STANDARD_INPUT else path for path in data], config, strict)


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

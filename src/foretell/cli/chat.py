"""`foretell chat MODEL`: a conversation with a model."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.path_arguments import check_not_read
from foretell.cli.sampling import SAMPLING_DEFAULTS, Sampling
from foretell.cli.terminal import fail, note, notes_after, open_model, print_json, report, write, write_page
from foretell.errors import DataError, ForetellError, UsageError, as_path, did_you_mean
from foretell.storage.files import check_target

if TYPE_CHECKING:
    from foretell.inference.chat import Chat

PROMPT = "> "
HELP = """/reset           forget the conversation; the system message stays
/system [TEXT]   show the system message, or set it
/save FILE       write the conversation as JSON for finetune --task chat;
                 /save --overwrite FILE replaces a file
/look [N]        what decided the last token of the answer, or the Nth last
/help            this list
/exit            end the program, as /quit, /bye and Ctrl-D do
//TEXT           send a message that begins with a slash
Ctrl-C stops an answer, or ends the program where there is none"""
ENDS = ("/exit", "/quit", "/bye")
ENDINGS = {
    "context": "context full: the answer stops here; /reset begins a new conversation",
    "length": "stopped after --max-tokens",
    "interrupted": "stopped; the answer so far is kept",
}
OVERWRITE = "--overwrite "
PARTS_SHOWN = 5
DIGITS = 9  # maximum digits of a number; Python refuses to read thousands


def chat(
    model: arguments.Model,
    /,
    *,
    system: Annotated[str | None, Parameter(help="A system message: instructions before the conversation.")] = None,
    template: arguments.Template = None,
    max_tokens: Annotated[int | None, Parameter(help="Tokens per answer (default: what fits the context).")] = None,
    sampling: Sampling = SAMPLING_DEFAULTS,
    json: arguments.Json = False,
    options: arguments.Options = arguments.MODEL_DEFAULTS,
) -> None:
    """Talk with a model.

    Each line is a message; the answer is streamed. /help lists the commands.

    Piped, each line of standard input is a message, and each answer a line, with its line feeds as \\n.
    """
    sampling.check()
    loaded = open_model(model, **vars(options))
    from foretell.inference.chat import Chat
    from foretell.saved_model.config_file import command_of

    if command := command_of(model, [part.kind for part in loaded.parts.values()]):
        raise UsageError(f"{model} does not read messages; to use it for its task: {command}")

    conversation = Chat(loaded, system, template=template, max_tokens=max_tokens, **sampling.given())
    if is_interactive():
        note("/help lists the commands; Ctrl-C stops an answer, /exit ends")
    read = [str(each) for each in (model, template, vars(sampling)["json_schema"]) if each is not None]
    commands = COMMANDS | {"/save": partial(save, read=read)}
    for source, line in iter_lines():
        if line.split(maxsplit=1)[0] in ENDS:
            return
        try:
            take_line(conversation, line, json, commands)
        except ForetellError as error:
            if not is_interactive():
                raise error.at(source) from None
            fail(error.for_command_line(), error.exit_code)


def evaluate_chat(
    model: arguments.Model,
    /,
    *files: Annotated[Path, Parameter(help="json, jsonl, csv or tsv files with conversations.")],
    base: Annotated[str | None, Parameter(help="A model to compare with, such as the one before tuning.")] = None,
    questions: Annotated[int, Parameter(help="Number of answers to show, from the first conversations.")] = 5,
    limit: arguments.Limit = None,
    html: Annotated[arguments.Output, Parameter(help="Write the result as a page.")] = None,
    overwrite: arguments.Overwrite = False,
    json: arguments.Json = False,
    options: arguments.Options = arguments.MODEL_DEFAULTS,
) -> None:
    """Loss of a chat model on the answers of conversations, and its answers compared with another model's."""
    if not files:
        raise UsageError("give one or more files of conversations")
    if questions < 0:
        raise UsageError("--questions must be at least 0")
    if html is not None:
        check_target(html, overwrite=overwrite)
    models = [open_model(each, **vars(options)) for each in [model, *([] if base is None else [base])]]
    from foretell.finetuning.chat_evaluation import evaluate_chats

    result = evaluate_chats(models, files, questions=questions, limit=limit)
    if html is not None:
        write_page(html, " and ".join(each.name for each in models), result)
    report(result, json)


def is_interactive() -> bool:
    """True if messages are typed on a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def iter_lines() -> Iterator[tuple[str, str]]:
    """Each nonblank line of standard input, with its place."""
    if sys.stdin is None:
        raise DataError("standard input is closed; pipe a message into it, one per line")
    lines = typed_lines() if is_interactive() else piped_lines()
    yield from ((f"line {number}", line) for number, line in enumerate(lines, start=1) if line.strip())


def typed_lines() -> Iterator[str]:
    """Typed lines, with readline's editing and history if available."""
    if find_spec("readline"):
        importlib.import_module("readline")
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            write("")
            return


def piped_lines() -> Iterator[str]:
    """Lines of a pipe or a file, as they arrive."""
    from foretell.data.lines import TextFile

    yield from (line.removesuffix("\n") for line in TextFile(None).text_lines())


def take_line(conversation: Chat, line: str, json: bool, commands: Mapping[str, Callable[[Chat, str], None]]) -> None:
    """Run a command, or send a message and show the answer."""
    if line.startswith("/") and not line.startswith("//"):
        name, _, argument = line.partition(" ")
        if name not in commands:
            raise UsageError(
                f"unknown command {shortened(name)}{did_you_mean(name, (*commands, *ENDS))}; /help lists all"
            )
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():  # only JSON goes to stdout
            commands[name](conversation, argument.strip())
    else:
        answer(conversation, line.removeprefix("/") if line.startswith("//") else line, json)


def shortened(text: str) -> str:
    """The beginning of a text, for a message."""
    return text if len(text) <= 80 else f"{text[:79]}…"


def answer(conversation: Chat, text: str, json: bool) -> None:
    """Send a message; the answer is streamed, or written as a line in a pipe. Ctrl-C stops it."""
    is_streamed = is_interactive() and not json
    with notes_after(), closing(conversation.stream(text)) as pieces:
        try:
            for piece in pieces:
                if is_streamed:
                    write(piece, end="")
        except KeyboardInterrupt:
            pieces.close()
    result = conversation.answer
    assert result is not None, "a finished stream has an answer"
    line = "" if is_streamed else result.text.replace("\n", "\\n")
    print_json({"message": text, **result.to_json()}) if json else write(line)
    if result.finish_reason in ENDINGS:
        note(ENDINGS[result.finish_reason])


def reset(conversation: Chat, argument: str) -> None:
    conversation.reset()
    note("the conversation is forgotten" + ("" if conversation.system is None else "; the system message stays"))


def set_system(conversation: Chat, argument: str) -> None:
    if argument:
        conversation.set_system(argument)
    note("no system message" if conversation.system is None else f"system message: {conversation.system}")


def save(conversation: Chat, argument: str, read: Sequence[str] = ()) -> None:
    """Write the conversation into a file. read: what the program has read, which is not replaced."""
    from foretell.storage.files import write_json

    name = argument.removeprefix(OVERWRITE).lstrip()
    if not name:
        raise UsageError("/save needs the name of a file")
    if not any(message.role == "assistant" for message in conversation.messages):
        raise UsageError("there is nothing to save yet")
    if "\0" in name:
        raise UsageError("/save needs the name of a file; this one has a NUL character")
    path = check_target(as_path("/save", name), overwrite=argument != name)
    check_not_read(path, read)
    write_json(path, [conversation.to_json()])
    note(f"{len(conversation.messages)} messages written to {name}")


def look(conversation: Chat, argument: str) -> None:
    """Print how a token was sampled, and the contribution of each part of the model to its logit."""
    from foretell.typesetting.numbers import signed
    from foretell.typesetting.text import document_text

    if argument and not (argument.isdecimal() and len(argument) <= DIGITS):
        raise UsageError(f"/look takes a number of tokens from the end, not '{shortened(argument)}'")
    back = int(argument or 1)
    receipt = conversation.receipt(back)
    receipt.check()
    write(document_text(receipt.document()))
    contributions = conversation.attribution(back)
    write(f"\nlogit {contributions.logit:.2f}, a sum of {len(contributions.parts)} direct contributions, the largest:")
    for part in contributions.largest(PARTS_SHOWN):
        write(f"  {signed(part.value, 2):>7}  {part.name}")


COMMANDS: dict[str, Callable[[Chat, str], None]] = {
    "/reset": reset,
    "/system": set_system,
    "/save": save,
    "/look": look,
    "/help": lambda conversation, argument: write(HELP),
}

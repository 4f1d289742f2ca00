"""The entry point: parse the arguments, run one verb, convert every error to one line and an exit code."""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter, RepeatArgumentError
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnknownOptionError, UnusedCliTokensError

from foretell.cli import IMPORTED
from foretell.cli.arguments import read_whole_numbers
from foretell.cli.command_line import choose_function, hint, rewrite
from foretell.cli.help import HelpInColumns
from foretell.cli.path_arguments import prepare_paths
from foretell.cli.terminal import fail, library_notes_on_stderr, write
from foretell.cli.training_verbs import RunOptions
from foretell.distributed.launch import is_follower
from foretell.errors import ForetellError, Interrupted, PeerError, UsageError, end_by_signal, hangup_signals
from foretell.session.options import LongReplays

# Imports create many objects but no garbage; collecting rarely saves an eighth of the time of importing torch
COLLECT_RARELY = (50_000, 20, 20)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

MAY_BE_EMPTY = {"--separator", "--system", "--sample-prompt", "--token", "--against", "--pair", "--target"}  # texts

START, TRAIN, ASK, LOOK, FILES = (
    Group(name, sort_key=index) for index, name in enumerate(("Start", "Train", "Ask", "Look inside", "Files"), start=1)
)
# Not "Examples:", which cyclopts would treat as a section of a docstring and hide
HELP = """A decoder (GPT) that you can see through.

    foretell demo                          the first five minutes

    foretell lesson smallest               how it works, every number shown
    foretell train my.txt --minutes 5      a model of your own text
    foretell finetune primer reviews.csv   labels or numbers for your texts
    foretell explain primer "The cat sat"  look inside a prediction
    foretell serve atlas --open            in a browser, and for programs

A MODEL is a path (a saved model, a Hugging Face folder or a GGUF file), the name
of a run in ./runs, `primer`, `atlas` or `almanac` (parts of the package),
`ollama:NAME`, or `hub:owner/name[@revision]` (downloaded).
"""
VERBS = {  # verb: (group, summary, function)
    "demo": (START, "The first five minutes: train, watch, generate.", "foretell.cli.demo:demo"),
    "lesson": (START, "How a decoder works, with every number shown.", "foretell.cli.lesson:lesson"),
    "train": (TRAIN, "Train a decoder on text.", "foretell.cli.train:train"),
    "runs": (TRAIN, "List runs, or compare several.", "foretell.cli.runs:runs"),
    "finetune": (TRAIN, "Train a model for a task on labelled texts.", "foretell.cli.finetune:finetune"),
    "generate": (ASK, "Continue a prompt.", "foretell.cli.generate:generate"),
    "chat": (ASK, "Talk with a model.", "foretell.cli.chat:chat"),
    "next": (ASK, "The most likely next tokens with their probabilities.", "foretell.cli.query:next_verb"),
    "score": (ASK, "The log-probability of a text, token by token.", "foretell.cli.query:score"),
    "translate": (ASK, "Translate sentences.", "foretell.cli.translate:translate"),
    "evaluate": (ASK, "Loss on texts, or accuracy at questions.", "foretell.cli.query:evaluate"),
    "predict": (ASK, "The label or number that a tuned model predicts.", "foretell.cli.predict:predict"),
    "forecast": (ASK, "The next values of series of numbers.", "foretell.cli.forecast:forecast"),
    "embed": (ASK, "The embedding vector of a text.", "foretell.cli.query:embed"),
    "serve": (ASK, "Serve models to programs, with OpenAI's protocol.", "foretell.cli.serve:serve"),
    "info": (LOOK, "Paths, shapes and sizes of weights; trace names; cost.", "foretell.cli.info:info"),
    "plan": (TRAIN, "What a training will need, and a generation.", "foretell.cli.plan:plan"),
    "trace": (LOOK, "Write values of a pass over a text to a file, by name.", "foretell.cli.trace:trace"),
    "explain": (LOOK, "A pass layer by layer, any number of it, or as a page.", "foretell.cli.explain:explain"),
    "tokenize": (LOOK, "The tokens of a text.", "foretell.cli.tokenize:tokenize"),
    "warm": (FILES, "Compile the kernels that a model generates with.", "foretell.cli.info:warm"),
    "convert": (FILES, "Write a model with integer weights or for other programs.", "foretell.cli.convert:convert"),
    "push": (FILES, "Write a model to the Hugging Face Hub, with a model card.", "foretell.cli.convert:push"),
}


def make_app(asked: Sequence[str] = ()) -> App:
    """The app with all verbs, imported when called. The first verb in `asked` has its full docstring as help."""
    app = App(
        name="foretell",
        help=HELP,
        help_format="plaintext",
        help_formatter=HelpInColumns(),
        version=_version,
        default_parameter=Parameter(negative=(), show_default=shown_default),
        config=(prepare_paths, read_whole_numbers),
        suppress_keyboard_interrupt=False,  # run() prints a line; cyclopts would exit silently
    )
    app["--help"].group = app["--version"].group = Group("Options", sort_key=9)
    for verb, (group, summary, function) in VERBS.items():
        # A summary replaces the docstring, which the overview could not show without importing the verb
        chosen = choose_function(verb, function, asked) if verb in asked[:1] else function
        app.command(chosen, name=verb, group=group, help=None if verb in asked[:1] else summary)
    tokenizer = App(name="tokenizer", help="Make a tokenizer.", group=TRAIN)
    summary = None if list(asked[:2]) == ["tokenizer", "train"] else "Make a tokenizer from text."
    tokenizer.command("foretell.cli.tokenize:train_tokenizer", name="train", help=summary)
    app.command(tokenizer)
    return app


def shown_default(value: Any) -> str | None:
    """A default in the help; None for an option that is off by default."""
    return None if value in (None, False, ()) else str(value)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its exit code."""
    for number in (signal.SIGTERM, *hangup_signals()):
        signal.signal(number, end_by_signal)
    gc.set_threshold(*COLLECT_RARELY)
    RunOptions.command_began = IMPORTED
    if os.environ.get("FORCE_COLOR") == "0":  # Rich takes any value for yes
        os.environ["FORCE_COLOR"], os.environ["NO_COLOR"] = "", "1"
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character outside the encoding must not stop the command
            stream.reconfigure(errors="replace")
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def open_missing_streams() -> None:
    """Open standard streams that the shell closed, because later files would get their descriptors.

    Standard output is opened for reading, so that writing a result to it is an error.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            mode = os.O_RDONLY if descriptor == 1 else os.O_RDWR
            os.open(os.devnull, mode)  # gets the lowest free descriptor, which is this one
    if sys.stdout is None or isinstance(sys.stdout.buffer, io.RawIOBase):  # unbuffered: would lose the rest of a write
        encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
        sys.stdout = open(1, "w", 1, closefd=False, encoding=encoding)  # noqa: SIM115 - open until the process ends
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False, encoding="utf-8")  # noqa: SIM115


def run(arguments: list[str]) -> int:
    """Run a command; returns 0 (success), 1 (failure), 2 (usage), 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP)."""
    try:
        if not arguments:
            write(f"{HELP}\n`foretell --help` lists all commands.")
            return 0
        words = allow_long_replays(rewrite(arguments))
        app = make_app(arguments)
        if "" in words or any(word.endswith("=") for word in words):
            refuse_empty_values(app, words)
        with library_notes_on_stderr():
            app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except ForetellError as error:
        return fail(error.for_command_line(), error.exit_code) if is_told_here(error) else error.exit_code
    except CycloptsError as error:
        return fail(_usage(error), 2)
    except KeyboardInterrupt:
        return fail("stopped by Ctrl-C", 130)
    except BrokenPipeError:
        drop_output()  # the reader of the output has closed it
    except MemoryError:
        return fail("out of memory; give less text at once, or a smaller model", 1)
    except OSError as error:
        return fail(f"{error.filename or failed_stream(error)}: {error.strerror or error}", 1)
    finally:
        LongReplays.are_allowed = True
    return 0


def allow_long_replays(words: list[str]) -> list[str]:
    """The words without --yes for a replay (RUN@step-N, --step N), which needs it to be long in a pipe."""
    before = [*takewhile(lambda word: word != "--", words)]
    replays = any("@step-" in word or word.partition("=")[0] == "--step" for word in before)
    is_given = replays and "--yes" in before
    LongReplays.are_allowed = is_given or sys.stderr.isatty()
    return [word for index, word in enumerate(words) if not (is_given and index < len(before) and word == "--yes")]


def refuse_empty_values(app: App, words: list[str]) -> None:
    """Refuse an empty value of an option, as an unset variable of the shell gives it, unless the value is a text."""
    verb = app.parse_commands(words)[1][-1]
    options = {name for each in verb.assemble_argument_collection() if not each.is_flag() for name in each.names}
    options = {name for name in options if name.startswith("--")} - MAY_BE_EMPTY
    for word, following in pairwise([*takewhile(lambda word: word != "--", words), "--"]):
        option, equals, value = word.partition("=")
        if option in options and not (value if equals else following):
            raise UsageError(f"the value of {option} is empty; leave the option out, or give a value")


def drop_output() -> None:
    """Redirect stdout, so that Python does not complain at exit about text that cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def failed_stream(error: OSError) -> str:
    """The stream of an error without a file name: stdout if its disk is full, or if it cannot be written to now."""
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"")  # the text of a long result may be lost already
        if error.errno not in FULL:
            return "input or output"
    except OSError:
        drop_output()
    return "could not write to standard output"


def is_told_here(error: ForetellError) -> bool:
    """True if this process should print the error: the first process, or another one with an error of only its own."""
    if isinstance(error, PeerError) and error.is_said:
        return False
    return not is_follower() or not isinstance(error, PeerError | Interrupted | UsageError)


def _usage(error: CycloptsError) -> str:
    """One line about the problem with the arguments, and the help to read."""
    verb = " ".join(error.command_chain or ())
    message = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        suggestion = hint(verb, option, [name for each in error.argument_collection for name in each.names])
        message = f"unknown option {option}{suggestion or '. Text that begins with a hyphen goes after --.'}"
    if isinstance(error, RepeatArgumentError):
        message = f"{error.token.keyword} is given twice; give it once"
    if isinstance(error, UnusedCliTokensError):
        message = f"too many arguments: {' '.join(map(repr, error.unused_tokens or []))}"
    if isinstance(error, UnknownCommandError | MissingArgumentError | UnknownOptionError | UnusedCliTokensError):
        message += f" (foretell {verb + ' ' if verb else ''}--help lists all)"
    return message


def _version() -> str:
    from foretell.system.installation import installation_text

    return installation_text()

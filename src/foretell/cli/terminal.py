"""Output: results to stdout, everything else to stderr; the library's log and progress; loading with a message."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from foretell.distributed.launch import is_follower
from foretell.errors import UsageError, counted
from foretell.storage.files import write_text
from foretell.typesetting.numbers import format_duration

if TYPE_CHECKING:
    from foretell.convert.huggingface_files import HuggingFaceFiles
    from foretell.language_model import LanguageModel
    from foretell.model.decoder import Decoder
    from foretell.saved_model.config_file import StoredModel
    from foretell.typesetting.html import Shown

# Seconds between two lines of progress, on a terminal and in a log
TERMINAL_SECONDS, PLAIN_SECONDS = 0.2, 10.0
WIDTH = 78
BEGINNING = re.compile(r"^\S+ {2,}")  # the beginning of a line of the log: `size        small, ...`
STYLES = {  # of a document on a terminal: its titles, its rules, and bars by their length
    r"(?m)^\S.*(?=\n[═─]+$)": "bold",
    r"(?m)^[═─]+( +[═─]+)*$": "dim",
    r"(?<!█)█{1,3}(?!█)": "dim cyan",
    r"(?<!█)█{4,7}(?!█)": "cyan",
    r"█{8,}": "bold cyan",
}
# Control characters except line feed and tab, and characters that reorder or hide text (Unicode Standard Annex 9)
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class OutputConsole(Console):
    """A console that shows control characters visibly on a terminal. Rich honours NO_COLOR and FORCE_COLOR.

    It neither wraps nor highlights. COLUMNS=0 means an unknown width, but Rich would use a width of 0. Redirected
    results are written without changes; messages are not, because logs are read on terminals later.
    """

    def __init__(self, **options: Any):
        columns = os.environ.get("COLUMNS", "")
        width = WIDTH if columns.isdigit() and int(columns) == 0 else None
        super().__init__(width=width, highlight=False, soft_wrap=True, emoji=False, markup=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_exact = not self.is_terminal and not self.stderr
            if segment.control or segment.text == "\r" or is_exact:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # like print; rich would exit with code 1


class QuietStream:
    """Standard error, which ignores writes after one has failed: messages must not stop a command."""

    def __init__(self) -> None:
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def write(self, text: str) -> int:
        if not self.failed:
            self._attempt(lambda: sys.stderr.write(text))
        return len(text)

    def flush(self) -> None:
        if not self.failed:
            self._attempt(lambda: sys.stderr.flush())

    def _attempt(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except (OSError, ValueError):  # ValueError: the stream was closed
            self.failed = True
            # Discard buffered output, on which Python would fail at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@cache
def results() -> OutputConsole:
    """The console for standard output."""
    return OutputConsole()


@cache
def messages() -> OutputConsole:
    """The console for standard error, for everything except results."""
    return OutputConsole(file=cast("IO[str]", QuietStream()), stderr=True)


def visible(text: str) -> str:
    """The text with control characters, except line feed and tab, made visible and harmless for a terminal.

    Includes the controls U+0080 to U+009F and characters that reorder text. ESC becomes its picture, U+241B.
    """
    return CONTROLS.sub(_picture, text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def write(text: str, end: str = "\n") -> None:
    """Write text to stdout without changes, or with visible control characters on a terminal."""
    print(visible(text) if results().is_terminal else text, end=end, flush=True)


def write_document(text: str) -> None:
    """Write a document to stdout; on a terminal with colours, titles are bold, rules dim, and long bars stronger."""
    if not results().is_terminal:
        return write(text)
    shown = Text(text)
    for pattern, style in STYLES.items():
        shown.highlight_regex(pattern, style)
    return results().print(shown)


class Reportable(Protocol):
    """A result whose `str` is its document as text."""

    def to_json(self) -> Any: ...


def report(result: Reportable, json: bool) -> None:
    """Print a result as JSON, or as its document."""
    print_json(result.to_json()) if json else write_document(str(result))


def write_page(path: Path, title: str, result: Shown) -> None:
    """Write a result as a self-contained HTML file; `path` must be checked before, and links are followed."""
    from foretell.typesetting.html import page

    write_text(path.resolve(), page(title, result.document()))
    note(f"{path}: open it in a browser")


def note(text: str) -> None:
    """Print a line on stderr, only in the first process."""
    if not is_follower():
        console = messages()
        console.print(folded(text, console.width) if console.is_terminal else text, style="dim")


def folded(text: str, width: int) -> str:
    """Fold lines that are too long for a terminal, with their continuations indented behind the label."""
    lines = []
    for line in text.split("\n"):
        below = " " * (len(line) - len(BEGINNING.sub("", line)))
        lines.append(
            textwrap.fill(line, width, subsequent_indent=below, break_on_hyphens=False, break_long_words=False)
        )
    return "\n".join(lines)


class NoteHandler(logging.Handler):
    """Prints the library's log as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextmanager
def library_notes_on_stderr() -> Iterator[None]:
    """Show the library's log, from level INFO, inside the block."""
    logger, handler = logging.getLogger("foretell"), NoteHandler()
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


@contextmanager
def notes_after() -> Iterator[None]:
    """Show the library's log after the block, which writes a line in pieces."""
    logger, held = logging.getLogger("foretell"), MemoryHandler(capacity=1000, flushLevel=logging.CRITICAL + 1)
    shown = list(logger.handlers)
    logger.handlers[:] = [held]
    try:
        yield
    finally:
        logger.handlers[:] = shown
        for record in held.buffer:
            logger.handle(record)


def fail(message: str, exit_code: int) -> int:
    """Print an error as one line on stderr and return the exit code."""
    one_line = re.sub(r"\s*[\r\n]\s*", " ", message.strip())  # other spaces may be part of a file name
    rank = f"rank {os.environ['RANK']}: " if os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ else ""
    messages().print(f"foretell: {rank}{one_line}", style=None)
    return exit_code


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on stdout. The control characters that JSON allows are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    print(CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


class ProgressLine:
    """Progress and remaining time of a long computation: a line that is overwritten on a terminal, or occasional lines
    in a log.

    Call it with (done, total) and, if texts end together, the share of the work. The estimate leaves out the time
    before the first call. The line is erased when the block ends.
    """

    def __init__(self, what: str):
        self.what = what
        self.console = messages()
        self._last = time.monotonic()
        self._start, self._first = (self._last, 0.0), (0.0, 0.0)
        self._has_shown = False
        self._seconds = TERMINAL_SECONDS if self.console.is_terminal else PLAIN_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.console.print(" " * WIDTH, end="\r")

    def __call__(self, done: int, total: int, share: float | None = None) -> None:
        now, share = time.monotonic(), done / max(1, total) if share is None else share
        self._first = self._first if self._first[1] else (now, share)
        start, before = self._first if share > self._first[1] else self._start
        left = (now - start) / max(share - before, 1e-9) * max(0, 1 - share)
        if now - self._last < self._seconds and (self._has_shown or left < self._seconds):
            return
        self._last, self._has_shown = now, True
        self.show(f"{done:,} of {total:,} ({share:.0%}), {format_duration(left)} left")

    def show(self, progress: str) -> None:
        line, end = f"{self.what}: {progress}", "\r" if self.console.is_terminal else "\n"
        self.console.print(line.ljust(WIDTH) if end == "\r" else line, style="dim", end=end)


class CountLine(ProgressLine):
    """Progress of a computation of unknown length. Call it with the count."""

    def __call__(self, done: int, total: int = 0, share: float | None = None) -> None:
        if time.monotonic() - self._last < self._seconds:
            return
        self._last = time.monotonic()
        self.show(counted(done, "row"))


def show_loading(argument: str) -> None:
    """Print a line before a model is loaded; on a terminal, the next line replaces it."""
    console = messages()
    console.print(f"loading {argument}", style="dim", end="\r" if console.is_terminal else "\n")


def show_tokens(argument: str, text: str, allow_special: bool = False, start_token: str | None = None) -> None:
    """Print a line with the tokens that a model reads, or the last ones that fit; needs no torch.

    Prints nothing for a model on the Hub or without a tokenizer, or if results do not go to a terminal.
    """
    if not results().is_terminal or argument.startswith("hub:"):
        return
    from foretell.finding import find_model
    from foretell.saved_model.config_file import is_own
    from foretell.storage.files import CONFIG, TOKENIZER_FILE
    from foretell.text import has_tokenizer, load_tokenizer

    directory = find_model(argument)
    if not has_tokenizer(directory) or not (directory / CONFIG).exists():
        return
    tokenizer = load_tokenizer(directory / TOKENIZER_FILE if is_own(directory) else directory)
    tokenizer = tokenizer if start_token is None else tokenizer.with_start(start_token)
    pieces = [repr(tokenizer.text_of(each)) for each in tokenizer.encode_input(text, allow_special=allow_special)]
    count = counted(len(pieces), "token")
    line = f"{count}: {' '.join(pieces)}"
    while len(line) > WIDTH and len(pieces) > 1:
        pieces = pieces[-min(len(pieces) - 1, WIDTH) :]
        line = f"{count}, the last: {' '.join(pieces)}"
    note(line[:WIDTH])


def read_description(argument: str, verify: bool = False) -> StoredModel | HuggingFaceFiles | None:
    """A model as its files describe it, without weights.

    None for a LoRA adapter, and for updates or an encoder inside the model.
    """
    from foretell.convert.gguf.files import read_gguf
    from foretell.convert.huggingface_files import read_directory
    from foretell.finding import check_files, find_model
    from foretell.saved_model.config_file import is_own, read_stored_model
    from foretell.storage.files import ADAPTER_CONFIG

    directory = find_model(argument)
    if (directory / ADAPTER_CONFIG).is_file():
        return None
    check_files(directory, in_full=verify)
    if directory.is_file():
        stored = read_gguf(directory)
    else:
        stored = read_stored_model(directory) if is_own(directory) else read_directory(directory)
    for line in () if stored is None else (*stored.notes, *stored.tokenizer.notes):
        note(line)
    return stored


def show_loaded(argument: str, decoder: Decoder, precision: str, notes: Iterable[str]) -> None:
    """Print the notes from loading a model, and a line with its size, device and precision."""
    from foretell.model.quantized_linear import count_weights

    for line in notes:
        note(line)
    note(f"{argument}: {count_weights(decoder):,} parameters on {decoder.device.type} in {precision}")


def open_model(
    argument: str,
    *,
    ids: bool = False,
    allow_special: bool = False,
    start_token: str | None = None,
    strict: bool = False,
    texts: Sequence[str] = (),
    **options: Any,
) -> LanguageModel:
    """Load a model, with a line on stderr before, and one about its properties after. ids: texts are token ids.

    allow_special: encode names of special tokens in a text as the tokens. start_token: a token before every text.
    strict: see `LanguageModel.strict`. texts: the texts to read. options: keywords of `foretell.load`.
    """
    if ids and (allow_special or start_token is not None):
        raise UsageError("--ids and names of special tokens exclude each other; write the id of the special token")
    show_loading(argument)
    from foretell.loading import load
    from foretell.saved_model.config_file import command_of

    model = load(argument, **options)
    show_loaded(argument, model.decoder, model.precision, model.notes)
    for line in model.tokenizer.notes:
        note(line)
    if texts and (command := command_of(argument, [part.kind for part in model.parts.values()])):
        note(f"a text for {argument} is token ids; to use it for its task: {command}")
    model = model.strict() if strict else model
    model = model.on_ids() if ids else model
    model = model if start_token is None else model.with_start(start_token)
    return model.reading_special() if allow_special else model

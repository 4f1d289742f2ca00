"""Exceptions for users. The exit code of the command line is 1, 2 for UsageError, and 130, 143 or 129 for a signal.

A message is one line: what is wrong, where, and what to do. It is raised with the options of the command line, such as
`--dev-fraction`; Python shows them as its keywords, dev_fraction.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import signal
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path
from types import FrameType, UnionType
from typing import NoReturn

# An option, or a command of ours up to the end of its clause, which is for a shell and stays
OPTION = re.compile(r"\bforetell'? [^;`]*|(?<![\w'-])--(resume auto|[a-z]+(?:[-.][a-z]+)*)")
KEYWORDS = {  # of options whose keyword in Python has another name
    "resume auto": "resume=True",
    "slide": "slide=True",
    "overwrite": "overwrite=True",
    "from-scratch": "is_from_scratch=True",
    "column": "columns",
    "kind": "tokenizer.kind",
    "no-hold-out": "series.hold_out=False",
    "checkpoint-activations": "training.checkpoint_activations",
    "parallel": "training.parallel",
}


def as_keyword(option: re.Match[str]) -> str:
    """A match of OPTION as Python writes it."""
    name = option[1]
    return option[0] if name is None else KEYWORDS.get(name, name.replace("-", "_"))


class ForetellError(Exception):
    """Base class of all errors meant for users; `exit_code` is what the process returns."""

    exit_code = 1

    def __str__(self) -> str:
        """The message in terms of Python's keywords."""
        return OPTION.sub(as_keyword, self.for_command_line())

    def for_command_line(self) -> str:
        """The message in terms of the command line's options, as it was raised."""
        return super().__str__()

    def for_server(self) -> str:
        """The message in terms of a request to the HTTP server."""
        return str(self)

    def at(self, where: str) -> ForetellError:
        """The error for the command line with the place in its input."""
        located = ForetellError(f"{where}: {self.for_command_line()}")
        located.exit_code = self.exit_code
        return located


class DataError(ForetellError):
    """A text, file or token store is missing, empty, unreadable or too short."""


class TokenizerError(ForetellError):
    """A tokenizer cannot be read, or a text cannot be written in its vocabulary."""


class CheckpointError(ForetellError):
    """A run, checkpoint or saved model is missing, damaged or does not fit."""


class ContextLengthError(ForetellError):
    """A text does not fit the model's context."""


class TrainingError(ForetellError):
    """Training cannot continue."""


class DivergedError(TrainingError):
    """A loss or gradient is not finite."""


class PeerError(TrainingError):
    """Another process of the training has failed or was killed. is_said: that process reported this reason."""

    def __init__(self, message: str, is_said: bool = False):
        super().__init__(message)
        self.is_said = is_said


class OutputError(ForetellError):
    """A file or folder cannot be written."""


class LessonError(ForetellError):
    """A figure of a worked example is not reproduced."""


class UsageError(ForetellError):
    """Invalid arguments."""

    exit_code = 2


class ConfigError(UsageError):
    """An unknown, missing or contradictory configuration value."""


class Interrupted(ForetellError):  # noqa: N818 - an event, not an error
    """Ctrl-C, SIGTERM or SIGHUP, raised after saving."""

    def __init__(self, message: str, exit_code: int = 130):
        super().__init__(message)
        self.exit_code = exit_code


def end_by_signal(number: int, frame: FrameType | None) -> NoReturn:
    """The handler of SIGTERM and SIGHUP in a command; a training has another, which saves."""
    raise Interrupted(f"stopped by {signal.Signals(number).name}", 128 + number)


def hangup_signals() -> list[signal.Signals]:
    """SIGHUP, which is sent when the terminal closes; none if it is ignored, as under nohup."""
    return [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]


def shell_words(*words: str | Path) -> str:
    """Words as a shell reads them, on one line: a line feed is $'\\n', as in bash and zsh."""
    return shlex.join(map(str, words)).replace("\n", r"'$'\n''")


def check_type(name: str, value: object, kind: type | UnionType, expected: str, advice: str = "") -> None:
    """Refuse an argument of another type. expected: the right type in words, such as "a string"."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be {expected}, not {type(value).__name__}{advice and f'; {advice}'}")


def as_path(name: str, value: str | os.PathLike[str]) -> Path:
    """The path that a caller gives, with a leading ~ expanded. Refuses any other type."""
    check_type(name, value, str | os.PathLike, "a string or a Path")
    return Path(expanded(os.fspath(value)))


def expanded(path: str) -> str:
    """A path with the home directory in place of a leading ~/ or of ~ alone."""
    if path != "~" and not path.startswith("~/"):
        is_named_so = Path(path).parts[:1] == ("~",)  # ./~/x, which Path and then a second expansion would make ~/x
        return os.path.abspath(path) if is_named_so else path  # noqa: PTH100
    home = os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser also expands ~name
    if home == path:
        raise UsageError(f"{path}: the home directory is not known; give the whole path")
    return home


def check_count(name: str, value: int) -> None:
    """Refuse anything but a whole number of at least 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} must be a whole number, 1 or more, not {value}")


def counted(count: int, noun: str) -> str:
    """`1 token`, `2,000 tokens`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """`, did you mean 'x'?` for the nearest known word; empty if none is near."""
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f", did you mean '{near[0]}'?" if near else ""
